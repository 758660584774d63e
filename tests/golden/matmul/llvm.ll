declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @matmul_body(ptr noalias %data0, ptr noalias readonly %data1, ptr noalias readonly %data2, i64 %begin, i64 %end) nounwind noinline "denormal-fp-math"="preserve-sign,preserve-sign" {
entry:
  %temp0 = alloca [1024 x float], align 64
  %acc0 = alloca <8 x float>
  %acc1 = alloca <8 x float>
  %acc2 = alloca <8 x float>
  %acc3 = alloca <8 x float>
  %acc4 = alloca <8 x float>
  %acc5 = alloca <8 x float>
  %acc6 = alloca <8 x float>
  %acc7 = alloca <8 x float>
  br label %p0_0_1_enter
p0_0_1_enter:
  br label %p0_0_1_test
p0_0_1_test:
  %p0_0_1 = phi i64 [ %begin, %p0_0_1_enter ], [ %p0_0_1_next, %p0_0_1_step ]
  %p0_0_1_more = icmp slt i64 %p0_0_1, %end
  br i1 %p0_0_1_more, label %p0_0_1_body, label %p0_0_1_done
p0_0_1_body:
  %v2 = sdiv i64 %p0_0_1, 4
  %v3 = mul nsw i64 %v2, 2048
  %v4 = srem i64 %p0_0_1, 4
  %v5 = mul nsw i64 %v4, 16
  %v6 = add nsw i64 %v3, %v5
  br label %i2_6_0_7_enter
i2_6_0_7_enter:
  br label %i2_6_0_7_test
i2_6_0_7_test:
  %i2_6_0_7 = phi i64 [ 0, %i2_6_0_7_enter ], [ %i2_6_0_7_next, %i2_6_0_7_step ]
  %i2_6_0_7_more = icmp slt i64 %i2_6_0_7, 64
  br i1 %i2_6_0_7_more, label %i2_6_0_7_body, label %i2_6_0_7_done
i2_6_0_7_body:
  %v8 = mul nsw i64 %i2_6_0_7, 16
  %v9 = mul nsw i64 %i2_6_0_7, 64
  br label %i1_0_1_6_0_0_10_enter
i1_0_1_6_0_0_10_enter:
  br label %i1_0_1_6_0_0_10_test
i1_0_1_6_0_0_10_test:
  %i1_0_1_6_0_0_10 = phi i64 [ 0, %i1_0_1_6_0_0_10_enter ], [ %i1_0_1_6_0_0_10_next, %i1_0_1_6_0_0_10_step ]
  %i1_0_1_6_0_0_10_more = icmp slt i64 %i1_0_1_6_0_0_10, 2
  br i1 %i1_0_1_6_0_0_10_more, label %i1_0_1_6_0_0_10_body, label %i1_0_1_6_0_0_10_done
i1_0_1_6_0_0_10_body:
  %v11 = mul nsw i64 %i1_0_1_6_0_0_10, 8
  %v12 = add nsw i64 %v11, %v8
  %p13 = getelementptr inbounds float, ptr %temp0, i64 %v12
  %v14 = add nsw i64 %v5, %v11
  %v15 = add nsw i64 %v14, %v9
  %p16 = getelementptr inbounds float, ptr %data2, i64 %v15
  %load17 = load <8 x float>, ptr %p16, align 4
  store <8 x float> %load17, ptr %p13, align 4
  br label %i1_0_1_6_0_0_10_step
i1_0_1_6_0_0_10_step:
  %i1_0_1_6_0_0_10_next = add nuw nsw i64 %i1_0_1_6_0_0_10, 1
  br label %i1_0_1_6_0_0_10_test
i1_0_1_6_0_0_10_done:
  br label %i2_6_0_7_step
i2_6_0_7_step:
  %i2_6_0_7_next = add nuw nsw i64 %i2_6_0_7, 1
  br label %i2_6_0_7_test
i2_6_0_7_done:
  br label %i0_1_0_18_enter
i0_1_0_18_enter:
  br label %i0_1_0_18_test
i0_1_0_18_test:
  %i0_1_0_18 = phi i64 [ 0, %i0_1_0_18_enter ], [ %i0_1_0_18_next, %i0_1_0_18_step ]
  %i0_1_0_18_more = icmp slt i64 %i0_1_0_18, 8
  br i1 %i0_1_0_18_more, label %i0_1_0_18_body, label %i0_1_0_18_done
i0_1_0_18_body:
  %v19 = mul nsw i64 %i0_1_0_18, 256
  %v20 = add nsw i64 %v6, %v19
  %p21 = getelementptr inbounds float, ptr %data0, i64 %v20
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc0
  %v22 = add nsw i64 %v3, %v19
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc1
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc2
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc3
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc4
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc5
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc6
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc7
  br label %r2_23_enter
r2_23_enter:
  br label %r2_23_test
r2_23_test:
  %r2_23 = phi i64 [ 0, %r2_23_enter ], [ %r2_23_next, %r2_23_step ]
  %r2_23_more = icmp slt i64 %r2_23, 64
  br i1 %r2_23_more, label %r2_23_body, label %r2_23_done
r2_23_body:
  %load24 = load <8 x float>, ptr %acc0
  %v25 = add nsw i64 %v22, %r2_23
  %p26 = getelementptr inbounds float, ptr %data1, i64 %v25
  %load27 = load float, ptr %p26, align 4
  %v28 = insertelement <8 x float> poison, float %load27, i64 0
  %v29 = shufflevector <8 x float> %v28, <8 x float> poison, <8 x i32> zeroinitializer
  %v30 = mul nsw i64 %r2_23, 16
  %p31 = getelementptr inbounds float, ptr %temp0, i64 %v30
  %load32 = load <8 x float>, ptr %p31, align 4
  %v33 = fmul contract <8 x float> %v29, %load32
  %v34 = fadd contract <8 x float> %load24, %v33
  store <8 x float> %v34, ptr %acc0
  %load35 = load <8 x float>, ptr %acc1
  %v36 = add nsw i64 %v30, 8
  %p37 = getelementptr inbounds float, ptr %temp0, i64 %v36
  %load38 = load <8 x float>, ptr %p37, align 4
  %v39 = fmul contract <8 x float> %v29, %load38
  %v40 = fadd contract <8 x float> %load35, %v39
  store <8 x float> %v40, ptr %acc1
  %load41 = load <8 x float>, ptr %acc2
  %v42 = add nsw i64 %v25, 64
  %p43 = getelementptr inbounds float, ptr %data1, i64 %v42
  %load44 = load float, ptr %p43, align 4
  %v45 = insertelement <8 x float> poison, float %load44, i64 0
  %v46 = shufflevector <8 x float> %v45, <8 x float> poison, <8 x i32> zeroinitializer
  %v47 = fmul contract <8 x float> %v46, %load32
  %v48 = fadd contract <8 x float> %load41, %v47
  store <8 x float> %v48, ptr %acc2
  %load49 = load <8 x float>, ptr %acc3
  %v50 = fmul contract <8 x float> %v46, %load38
  %v51 = fadd contract <8 x float> %load49, %v50
  store <8 x float> %v51, ptr %acc3
  %load52 = load <8 x float>, ptr %acc4
  %v53 = add nsw i64 %v25, 128
  %p54 = getelementptr inbounds float, ptr %data1, i64 %v53
  %load55 = load float, ptr %p54, align 4
  %v56 = insertelement <8 x float> poison, float %load55, i64 0
  %v57 = shufflevector <8 x float> %v56, <8 x float> poison, <8 x i32> zeroinitializer
  %v58 = fmul contract <8 x float> %v57, %load32
  %v59 = fadd contract <8 x float> %load52, %v58
  store <8 x float> %v59, ptr %acc4
  %load60 = load <8 x float>, ptr %acc5
  %v61 = fmul contract <8 x float> %v57, %load38
  %v62 = fadd contract <8 x float> %load60, %v61
  store <8 x float> %v62, ptr %acc5
  %load63 = load <8 x float>, ptr %acc6
  %v64 = add nsw i64 %v25, 192
  %p65 = getelementptr inbounds float, ptr %data1, i64 %v64
  %load66 = load float, ptr %p65, align 4
  %v67 = insertelement <8 x float> poison, float %load66, i64 0
  %v68 = shufflevector <8 x float> %v67, <8 x float> poison, <8 x i32> zeroinitializer
  %v69 = fmul contract <8 x float> %v68, %load32
  %v70 = fadd contract <8 x float> %load63, %v69
  store <8 x float> %v70, ptr %acc6
  %load71 = load <8 x float>, ptr %acc7
  %v72 = fmul contract <8 x float> %v68, %load38
  %v73 = fadd contract <8 x float> %load71, %v72
  store <8 x float> %v73, ptr %acc7
  br label %r2_23_step
r2_23_step:
  %r2_23_next = add nuw nsw i64 %r2_23, 1
  br label %r2_23_test
r2_23_done:
  %load74 = load <8 x float>, ptr %acc0
  %v75 = add nsw i64 %v20, 8
  %p76 = getelementptr inbounds float, ptr %data0, i64 %v75
  %load77 = load <8 x float>, ptr %acc1
  %v78 = add nsw i64 %v20, 64
  %p79 = getelementptr inbounds float, ptr %data0, i64 %v78
  %load80 = load <8 x float>, ptr %acc2
  %v81 = add nsw i64 %v20, 72
  %p82 = getelementptr inbounds float, ptr %data0, i64 %v81
  %load83 = load <8 x float>, ptr %acc3
  %v84 = add nsw i64 %v20, 128
  %p85 = getelementptr inbounds float, ptr %data0, i64 %v84
  %load86 = load <8 x float>, ptr %acc4
  %v87 = add nsw i64 %v20, 136
  %p88 = getelementptr inbounds float, ptr %data0, i64 %v87
  %load89 = load <8 x float>, ptr %acc5
  %v90 = add nsw i64 %v20, 192
  %p91 = getelementptr inbounds float, ptr %data0, i64 %v90
  %load92 = load <8 x float>, ptr %acc6
  %v93 = add nsw i64 %v20, 200
  %p94 = getelementptr inbounds float, ptr %data0, i64 %v93
  %load95 = load <8 x float>, ptr %acc7
  store <8 x float> %load74, ptr %p21, align 4
  store <8 x float> %load77, ptr %p76, align 4
  store <8 x float> %load80, ptr %p79, align 4
  store <8 x float> %load83, ptr %p82, align 4
  store <8 x float> %load86, ptr %p85, align 4
  store <8 x float> %load89, ptr %p88, align 4
  store <8 x float> %load92, ptr %p91, align 4
  store <8 x float> %load95, ptr %p94, align 4
  br label %i0_1_0_18_step
i0_1_0_18_step:
  %i0_1_0_18_next = add nuw nsw i64 %i0_1_0_18, 1
  br label %i0_1_0_18_test
i0_1_0_18_done:
  br label %p0_0_1_step
p0_0_1_step:
  %p0_0_1_next = add nuw nsw i64 %p0_0_1, 1
  br label %p0_0_1_test
p0_0_1_done:
  ret void
}
define void @matmul(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
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
  call void @matmul_body(ptr %buffer0, ptr %buffer1, ptr %buffer2, i64 %begin, i64 %end)
  call void @llvm.x86.sse.ldmxcsr(ptr %mode)
  ret void
}
