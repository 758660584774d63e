declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @greatest_vector_body(ptr noalias %data0, ptr noalias readonly %data1, i64 %begin, i64 %end) nounwind noinline "denormal-fp-math"="preserve-sign,preserve-sign" {
entry:
  %acc0 = alloca <4 x float>
  store <4 x float> <float 0xFFF0000000000000, float 0xFFF0000000000000, float 0xFFF0000000000000, float 0xFFF0000000000000>, ptr %acc0
  br label %r0_1_enter
r0_1_enter:
  br label %r0_1_test
r0_1_test:
  %r0_1 = phi i64 [ 0, %r0_1_enter ], [ %r0_1_next, %r0_1_step ]
  %r0_1_more = icmp slt i64 %r0_1, 16
  br i1 %r0_1_more, label %r0_1_body, label %r0_1_done
r0_1_body:
  %load2 = load <4 x float>, ptr %acc0
  %v3 = mul nsw i64 %r0_1, 4
  %p4 = getelementptr inbounds float, ptr %data1, i64 %v3
  %load5 = load <4 x float>, ptr %p4, align 4
  %v6 = fcmp olt <4 x float> %load2, %load5
  %v7 = select <4 x i1> %v6, <4 x float> %load5, <4 x float> %load2
  %v8 = fcmp ord <4 x float> %load5, zeroinitializer
  %v9 = select <4 x i1> %v8, <4 x float> %v7, <4 x float> <float 0x7FF8000000000000, float 0x7FF8000000000000, float 0x7FF8000000000000, float 0x7FF8000000000000>
  store <4 x float> %v9, ptr %acc0
  br label %r0_1_step
r0_1_step:
  %r0_1_next = add nuw nsw i64 %r0_1, 1
  br label %r0_1_test
r0_1_done:
  %load10 = load <4 x float>, ptr %acc0
  store <4 x float> %load10, ptr %data0, align 4
  ret void
}
define void @greatest_vector(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
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
  call void @greatest_vector_body(ptr %buffer0, ptr %buffer1, i64 %begin, i64 %end)
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
