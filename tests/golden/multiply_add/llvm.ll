declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @multiply_add_body(ptr noalias %data0, ptr noalias readonly %data1, ptr noalias readonly %data2, i64 %begin, i64 %end) nounwind noinline "denormal-fp-math"="preserve-sign,preserve-sign" {
entry:
  br label %i0_1_enter
i0_1_enter:
  br label %i0_1_test
i0_1_test:
  %i0_1 = phi i64 [ 0, %i0_1_enter ], [ %i0_1_next, %i0_1_step ]
  %i0_1_more = icmp slt i64 %i0_1, 8
  br i1 %i0_1_more, label %i0_1_body, label %i0_1_done
i0_1_body:
  %v2 = mul nsw i64 %i0_1, 8
  %p3 = getelementptr inbounds float, ptr %data0, i64 %v2
  %p4 = getelementptr inbounds float, ptr %data1, i64 %v2
  %load5 = load <8 x float>, ptr %p4, align 4
  %p6 = getelementptr inbounds float, ptr %data2, i64 %v2
  %load7 = load <8 x float>, ptr %p6, align 4
  %v8 = fmul contract <8 x float> %load5, %load7
  %v9 = fadd contract <8 x float> %v8, <float 0x3FE0000000000000, float 0x3FE0000000000000, float 0x3FE0000000000000, float 0x3FE0000000000000, float 0x3FE0000000000000, float 0x3FE0000000000000, float 0x3FE0000000000000, float 0x3FE0000000000000>
  store <8 x float> %v9, ptr %p3, align 4
  br label %i0_1_step
i0_1_step:
  %i0_1_next = add nuw nsw i64 %i0_1, 1
  br label %i0_1_test
i0_1_done:
  ret void
}
define void @multiply_add(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
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
  call void @multiply_add_body(ptr %buffer0, ptr %buffer1, ptr %buffer2, i64 %begin, i64 %end)
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
