declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @sum_rows_body(ptr noalias %data0, ptr noalias readonly %data1, i64 %begin, i64 %end) nounwind noinline "denormal-fp-math"="preserve-sign,preserve-sign" {
entry:
  %acc0 = alloca float
  br label %p0_1_enter
p0_1_enter:
  br label %p0_1_test
p0_1_test:
  %p0_1 = phi i64 [ %begin, %p0_1_enter ], [ %p0_1_next, %p0_1_step ]
  %p0_1_more = icmp slt i64 %p0_1, %end
  br i1 %p0_1_more, label %p0_1_body, label %p0_1_done
p0_1_body:
  %p2 = getelementptr inbounds float, ptr %data0, i64 %p0_1
  store float 0.0, ptr %acc0
  %v3 = mul nsw i64 %p0_1, 64
  br label %r1_4_enter
r1_4_enter:
  br label %r1_4_test
r1_4_test:
  %r1_4 = phi i64 [ 0, %r1_4_enter ], [ %r1_4_next, %r1_4_step ]
  %r1_4_more = icmp slt i64 %r1_4, 64
  br i1 %r1_4_more, label %r1_4_body, label %r1_4_done
r1_4_body:
  %load5 = load float, ptr %acc0
  %v6 = add nsw i64 %v3, %r1_4
  %p7 = getelementptr inbounds float, ptr %data1, i64 %v6
  %load8 = load float, ptr %p7, align 4
  %v9 = fadd contract float %load5, %load8
  store float %v9, ptr %acc0
  br label %r1_4_step
r1_4_step:
  %r1_4_next = add nuw nsw i64 %r1_4, 1
  br label %r1_4_test
r1_4_done:
  %load10 = load float, ptr %acc0
  %v11 = fmul contract float %load10, 0x3F90000000000000
  store float %v11, ptr %p2, align 4
  br label %p0_1_step
p0_1_step:
  %p0_1_next = add nuw nsw i64 %p0_1, 1
  br label %p0_1_test
p0_1_done:
  ret void
}
define void @sum_rows(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
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
  call void @sum_rows_body(ptr %buffer0, ptr %buffer1, i64 %begin, i64 %end)
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
