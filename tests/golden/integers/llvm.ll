declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @integers_body(ptr noalias %data0, ptr noalias %data1, ptr noalias %data2, ptr noalias readonly %data3, ptr noalias readonly %data4, ptr noalias readonly %data5, i64 %begin, i64 %end) nounwind noinline "denormal-fp-math"="preserve-sign,preserve-sign" {
entry:
  br label %i0_1_enter
i0_1_enter:
  br label %i0_1_test
i0_1_test:
  %i0_1 = phi i64 [ 0, %i0_1_enter ], [ %i0_1_next, %i0_1_step ]
  %i0_1_more = icmp slt i64 %i0_1, 64
  br i1 %i0_1_more, label %i0_1_body, label %i0_1_done
i0_1_body:
  %p2 = getelementptr inbounds i32, ptr %data0, i64 %i0_1
  %p3 = getelementptr inbounds i32, ptr %data3, i64 %i0_1
  %load4 = load i32, ptr %p3, align 4
  %p5 = getelementptr inbounds i32, ptr %data4, i64 %i0_1
  %load6 = load i32, ptr %p5, align 4
  %v7 = add i32 %load4, %load6
  %p8 = getelementptr inbounds i32, ptr %data1, i64 %i0_1
  %v9 = icmp eq i32 %load6, 0
  %v10 = icmp eq i32 %load6, -1
  %v11 = or i1 %v9, %v10
  %v12 = select i1 %v11, i32 1, i32 %load6
  %v13 = sdiv i32 %load4, %v12
  %v14 = sub i32 0, %load4
  %v15 = select i1 %v10, i32 %v14, i32 %v13
  %v16 = select i1 %v9, i32 0, i32 %v15
  %p17 = getelementptr inbounds i32, ptr %data2, i64 %i0_1
  %p18 = getelementptr inbounds float, ptr %data5, i64 %i0_1
  %load19 = load float, ptr %p18, align 4
  %v20 = fcmp oge float %load19, 0xC1E0000000000000
  %v21 = fcmp olt float %load19, 0x41E0000000000000
  %v22 = and i1 %v20, %v21
  %v23 = fptosi float %load19 to i32
  %v24 = select i1 %v22, i32 %v23, i32 -2147483648
  store i32 %v7, ptr %p2, align 4
  store i32 %v16, ptr %p8, align 4
  store i32 %v24, ptr %p17, align 4
  br label %i0_1_step
i0_1_step:
  %i0_1_next = add nuw nsw i64 %i0_1, 1
  br label %i0_1_test
i0_1_done:
  ret void
}
define void @integers(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
  %mode = alloca i32
  %flush = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %mode)
  %old = load i32, ptr %mode
  %new = or i32 %old, 32832
  store i32 %new, ptr %flush
  call void @llvm.x86.sse.ldmxcsr(ptr %flush)
  %b0 = getelementptr inbounds ptr, ptr %buffers, i64 0
  %buffer0 = load ptr, ptr %b0
  %b1 = getelementptr inbounds ptr, ptr %buffers, i64 1
  %buffer1 = load ptr, ptr %b1
  %b2 = getelementptr inbounds ptr, ptr %buffers, i64 2
  %buffer2 = load ptr, ptr %b2
  %b3 = getelementptr inbounds ptr, ptr %buffers, i64 3
  %buffer3 = load ptr, ptr %b3
  %b4 = getelementptr inbounds ptr, ptr %buffers, i64 4
  %buffer4 = load ptr, ptr %b4
  %b5 = getelementptr inbounds ptr, ptr %buffers, i64 5
  %buffer5 = load ptr, ptr %b5
  call void @integers_body(ptr %buffer0, ptr %buffer1, ptr %buffer2, ptr %buffer3, ptr %buffer4, ptr %buffer5, i64 %begin, i64 %end)
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
