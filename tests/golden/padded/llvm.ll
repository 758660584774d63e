declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @padded_body(ptr noalias %data0, ptr noalias readonly %data1, i64 %begin, i64 %end) nounwind noinline "denormal-fp-math"="preserve-sign,preserve-sign" {
entry:
  br label %i0_1_enter
i0_1_enter:
  br label %i0_1_test
i0_1_test:
  %i0_1 = phi i64 [ 0, %i0_1_enter ], [ %i0_1_next, %i0_1_step ]
  %i0_1_more = icmp slt i64 %i0_1, 10
  br i1 %i0_1_more, label %i0_1_body, label %i0_1_done
i0_1_body:
  %p2 = getelementptr inbounds float, ptr %data0, i64 %i0_1
  %v3 = add nsw i64 %i0_1, -1
  %v4 = icmp slt i64 %i0_1, 1
  %v5 = icmp ne i1 %v4, true
  %v6 = icmp slt i64 %i0_1, 9
  %v7 = and i1 %v5, %v6
  %p8 = getelementptr inbounds float, ptr %data1, i64 %v3
  br label %gate9
gate9:
  br i1 %v7, label %gate9_read, label %gate9_done
gate9_read:
  %load10 = load float, ptr %p8, align 4
  br label %gate9_done
gate9_done:
  %load11 = phi float [ %load10, %gate9_read ], [ 0.0, %gate9 ]
  store float %load11, ptr %p2, align 4
  br label %i0_1_step
i0_1_step:
  %i0_1_next = add nuw nsw i64 %i0_1, 1
  br label %i0_1_test
i0_1_done:
  ret void
}
define void @padded(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
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
  call void @padded_body(ptr %buffer0, ptr %buffer1, i64 %begin, i64 %end)
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
