declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @choice_body(ptr noalias %data0, ptr noalias %data1, ptr noalias readonly %data2, ptr noalias readonly %data3, ptr noalias readonly %data4, i64 %begin, i64 %end) nounwind noinline "denormal-fp-math"="preserve-sign,preserve-sign" {
entry:
  br label %i0_1_enter
i0_1_enter:
  br label %i0_1_test
i0_1_test:
  %i0_1 = phi i64 [ 0, %i0_1_enter ], [ %i0_1_next, %i0_1_step ]
  %i0_1_more = icmp slt i64 %i0_1, 16
  br i1 %i0_1_more, label %i0_1_body, label %i0_1_done
i0_1_body:
  %v2 = mul nsw i64 %i0_1, 4
  %p3 = getelementptr inbounds float, ptr %data0, i64 %v2
  %p4 = getelementptr inbounds float, ptr %data2, i64 %v2
  %load5 = load <4 x float>, ptr %p4, align 4
  %p6 = getelementptr inbounds float, ptr %data3, i64 %v2
  %load7 = load <4 x float>, ptr %p6, align 4
  %v8 = fcmp olt <4 x float> %load5, %load7
  %p9 = getelementptr inbounds i8, ptr %data4, i64 %v2
  %load10 = load <4 x i8>, ptr %p9, align 1
  %v11 = icmp ne <4 x i8> %load10, zeroinitializer
  %v12 = and <4 x i1> %v8, %v11
  %v13 = select <4 x i1> %v12, <4 x float> %load5, <4 x float> %load7
  %p14 = getelementptr inbounds i8, ptr %data1, i64 %v2
  %v15 = or <4 x i1> %v8, %v11
  store <4 x float> %v13, ptr %p3, align 4
  %v16 = zext <4 x i1> %v15 to <4 x i8>
  store <4 x i8> %v16, ptr %p14, align 1
  br label %i0_1_step
i0_1_step:
  %i0_1_next = add nuw nsw i64 %i0_1, 1
  br label %i0_1_test
i0_1_done:
  ret void
}
define void @choice(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
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
  call void @choice_body(ptr %buffer0, ptr %buffer1, ptr %buffer2, ptr %buffer3, ptr %buffer4, i64 %begin, i64 %end)
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
