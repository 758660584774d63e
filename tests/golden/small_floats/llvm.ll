declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @small_floats_body(ptr noalias %data0, ptr noalias readonly %data1, i64 %begin, i64 %end) nounwind noinline "denormal-fp-math"="preserve-sign,preserve-sign" {
entry:
  br label %i0_1_enter
i0_1_enter:
  br label %i0_1_test
i0_1_test:
  %i0_1 = phi i64 [ 0, %i0_1_enter ], [ %i0_1_next, %i0_1_step ]
  %i0_1_more = icmp slt i64 %i0_1, 64
  br i1 %i0_1_more, label %i0_1_body, label %i0_1_done
i0_1_body:
  %p2 = getelementptr inbounds i16, ptr %data0, i64 %i0_1
  %p3 = getelementptr inbounds i16, ptr %data1, i64 %i0_1
  %load4 = load i16, ptr %p3, align 2
  %v5 = zext i16 %load4 to i32
  %v6 = shl i32 %v5, 16
  %v7 = bitcast i32 %v6 to float
  %v8 = fmul contract float %v7, 2.0
  %v9 = bitcast float %v8 to i32
  %v10 = and i32 %v9, 2147483647
  %v11 = icmp ult i32 2139095040, %v10
  %v12 = lshr i32 %v9, 16
  %v13 = and i32 %v12, 1
  %v14 = add i32 %v9, %v13
  %v15 = add i32 %v14, 32767
  %v16 = lshr i32 %v15, 16
  %v17 = select i1 %v11, i32 32704, i32 %v16
  %v18 = trunc i32 %v17 to i16
  store i16 %v18, ptr %p2, align 2
  br label %i0_1_step
i0_1_step:
  %i0_1_next = add nuw nsw i64 %i0_1, 1
  br label %i0_1_test
i0_1_done:
  ret void
}
define void @small_floats(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
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
  call void @small_floats_body(ptr %buffer0, ptr %buffer1, i64 %begin, i64 %end)
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
