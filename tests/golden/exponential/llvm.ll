define internal void @exponential_body(ptr noalias %data0, ptr noalias readonly %data1, i64 %begin, i64 %end) nounwind {
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
  %v5 = fcmp olt float %load4, 0x40562E4300000000
  %v6 = fcmp olt float %load4, -104.0
  %v7 = fmul contract float %load4, 0x3FF7154760000000
  %v8 = fadd contract float %v7, 12582912.0
  %v9 = fsub contract float %v8, 12582912.0
  %v10 = fmul contract float %v9, 0x3FE62E4000000000
  %v11 = fsub contract float %load4, %v10
  %v12 = fmul contract float %v9, 0x3EB7F7D1C0000000
  %v13 = fsub contract float %v11, %v12
  %v14 = fmul contract float %v13, 0x3F56D10FC0000000
  %v15 = fadd contract float %v14, 0x3F8120B620000000
  %v16 = fmul contract float %v15, %v13
  %v17 = fadd contract float %v16, 0x3FA55551A0000000
  %v18 = fmul contract float %v17, %v13
  %v19 = fadd contract float %v18, 0x3FC5554DE0000000
  %v20 = fmul contract float %v19, %v13
  %v21 = fadd contract float %v20, 0x3FE0000000000000
  %v22 = fmul contract float %v13, %v13
  %v23 = fmul contract float %v21, %v22
  %v24 = fadd contract float %v23, %v13
  %v25 = fadd contract float %v24, 1.0
  %v26 = bitcast float %v25 to i32
  %v27 = fcmp olt float %load4, -86.0
  %v28 = bitcast float %v8 to i32
  %v29 = add i32 %v28, -1262485440
  %v30 = add i32 %v28, -1262485504
  %v31 = select i1 %v27, i32 %v29, i32 %v30
  %v32 = shl i32 %v31, 23
  %v33 = add i32 %v26, %v32
  %v34 = bitcast i32 %v33 to float
  %v35 = select i1 %v27, float 0x3BF0000000000000, float 1.0
  %v36 = fmul contract float %v34, %v35
  %v37 = select i1 %v6, float 0.0, float %v36
  %v38 = fadd contract float %load4, 0x7FF0000000000000
  %v39 = select i1 %v5, float %v37, float %v38
  store float %v39, ptr %p2, align 4
  br label %i0_1_step
i0_1_step:
  %i0_1_next = add nuw nsw i64 %i0_1, 1
  br label %i0_1_test
i0_1_done:
  ret void
}
define void @exponential(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
  %b0 = getelementptr inbounds ptr, ptr %buffers, i64 0
  %buffer0 = load ptr, ptr %b0
  %b1 = getelementptr inbounds ptr, ptr %buffers, i64 1
  %buffer1 = load ptr, ptr %b1
  call void @exponential_body(ptr %buffer0, ptr %buffer1, i64 %begin, i64 %end)
  ret void
}
