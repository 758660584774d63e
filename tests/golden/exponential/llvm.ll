declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @exponential_body(ptr noalias %data0, ptr noalias readonly %data1, i64 %begin, i64 %end) nounwind noinline "denormal-fp-math"="preserve-sign,preserve-sign" {
entry:
  br label %i0_1_enter
i0_1_enter:
  br label %i0_1_test
i0_1_test:
  %i0_1 = phi i64 [ 0, %i0_1_enter ], [ %i0_1_next, %i0_1_step ]
  %i0_1_more = icmp slt i64 %i0_1, 64
  br i1 %i0_1_more, label %i0_1_body, label %i0_1_done
i0_1_body:
  %p2 = getelementptr inbounds float, ptr %data0, i64 %i0_1
  %p3 = getelementptr inbounds float, ptr %data1, i64 %i0_1
  %load4 = load float, ptr %p3, align 4
  %v5 = fcmp olt float %load4, -176.0
  %v6 = select i1 %v5, float -176.0, float %load4
  %v7 = fcmp olt float 89.0, %v6
  %v8 = select i1 %v7, float 89.0, float %v6
  %v9 = fmul contract float %v8, 0x3FF7154760000000
  %v10 = fadd contract float %v9, 12583166.0
  %v11 = fsub contract float %v10, 12583166.0
  %v12 = fmul contract float %v11, 0x3FE62E4000000000
  %v13 = fsub contract float %v8, %v12
  %v14 = fmul contract float %v11, 0x3EB7F7D1C0000000
  %v15 = fsub contract float %v13, %v14
  %v16 = fmul contract float %v15, 0x3F56D10FC0000000
  %v17 = fadd contract float %v16, 0x3F8120B620000000
  %v18 = fmul contract float %v17, %v15
  %v19 = fadd contract float %v18, 0x3FA55551A0000000
  %v20 = fmul contract float %v19, %v15
  %v21 = fadd contract float %v20, 0x3FC5554DE0000000
  %v22 = fmul contract float %v21, %v15
  %v23 = fadd contract float %v22, 0x3FE0000000000000
  %v24 = fmul contract float %v15, %v15
  %v25 = fmul contract float %v23, %v24
  %v26 = fadd contract float %v25, %v15
  %v27 = bitcast float %v10 to i32
  %v28 = lshr i32 %v27, 1
  %v29 = shl i32 %v28, 23
  %v30 = bitcast i32 %v29 to float
  %v31 = fmul contract float %v26, %v30
  %v32 = fadd contract float %v31, %v30
  %v33 = sub i32 %v27, %v28
  %v34 = shl i32 %v33, 23
  %v35 = bitcast i32 %v34 to float
  %v36 = fmul contract float %v32, %v35
  store float %v36, ptr %p2, align 4
  br label %i0_1_step
i0_1_step:
  %i0_1_next = add nuw nsw i64 %i0_1, 1
  br label %i0_1_test
i0_1_done:
  ret void
}
define void @exponential(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
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
  call void @exponential_body(ptr %buffer0, ptr %buffer1, i64 %begin, i64 %end)
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
