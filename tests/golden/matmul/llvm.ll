define internal void @matmul_body(ptr noalias %data0, ptr noalias readonly %data1, ptr noalias readonly %data2, i64 %begin, i64 %end) nounwind {
entry:
  %acc0 = alloca <8 x float>
  %acc1 = alloca <8 x float>
  %acc2 = alloca <8 x float>
  %acc3 = alloca <8 x float>
  %acc4 = alloca <8 x float>
  %acc5 = alloca <8 x float>
  %acc6 = alloca <8 x float>
  %acc7 = alloca <8 x float>
  br label %p1_0_0_1_enter
p1_0_0_1_enter:
  br label %p1_0_0_1_test
p1_0_0_1_test:
  %p1_0_0_1 = phi i64 [ %begin, %p1_0_0_1_enter ], [ %p1_0_0_1_next, %p1_0_0_1_step ]
  %p1_0_0_1_more = icmp slt i64 %p1_0_0_1, %end
  br i1 %p1_0_0_1_more, label %p1_0_0_1_body, label %p1_0_0_1_done
p1_0_0_1_body:
  %v2 = sdiv i64 %p1_0_0_1, 16
  %v3 = mul nsw i64 %v2, 16
  %v4 = srem i64 %p1_0_0_1, 16
  %v5 = mul nsw i64 %v4, 256
  %v6 = add nsw i64 %v3, %v5
  %p7 = getelementptr inbounds float, ptr %data0, i64 %v6
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc0
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc1
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc2
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc3
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc4
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc5
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc6
  store <8 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>, ptr %acc7
  br label %r2_8_enter
r2_8_enter:
  br label %r2_8_test
r2_8_test:
  %r2_8 = phi i64 [ 0, %r2_8_enter ], [ %r2_8_next, %r2_8_step ]
  %r2_8_more = icmp slt i64 %r2_8, 64
  br i1 %r2_8_more, label %r2_8_body, label %r2_8_done
r2_8_body:
  %load9 = load <8 x float>, ptr %acc0
  %v10 = add nsw i64 %v5, %r2_8
  %p11 = getelementptr inbounds float, ptr %data1, i64 %v10
  %load12 = load float, ptr %p11, align 4
  %v13 = insertelement <8 x float> poison, float %load12, i64 0
  %v14 = shufflevector <8 x float> %v13, <8 x float> poison, <8 x i32> zeroinitializer
  %v15 = mul nsw i64 %r2_8, 64
  %v16 = add nsw i64 %v3, %v15
  %p17 = getelementptr inbounds float, ptr %data2, i64 %v16
  %load18 = load <8 x float>, ptr %p17, align 4
  %v19 = fmul contract <8 x float> %v14, %load18
  %v20 = fadd contract <8 x float> %load9, %v19
  store <8 x float> %v20, ptr %acc0
  %load21 = load <8 x float>, ptr %acc1
  %v22 = add nsw i64 %v16, 8
  %p23 = getelementptr inbounds float, ptr %data2, i64 %v22
  %load24 = load <8 x float>, ptr %p23, align 4
  %v25 = fmul contract <8 x float> %v14, %load24
  %v26 = fadd contract <8 x float> %load21, %v25
  store <8 x float> %v26, ptr %acc1
  %load27 = load <8 x float>, ptr %acc2
  %v28 = add nsw i64 %v10, 64
  %p29 = getelementptr inbounds float, ptr %data1, i64 %v28
  %load30 = load float, ptr %p29, align 4
  %v31 = insertelement <8 x float> poison, float %load30, i64 0
  %v32 = shufflevector <8 x float> %v31, <8 x float> poison, <8 x i32> zeroinitializer
  %v33 = fmul contract <8 x float> %v32, %load18
  %v34 = fadd contract <8 x float> %load27, %v33
  store <8 x float> %v34, ptr %acc2
  %load35 = load <8 x float>, ptr %acc3
  %v36 = fmul contract <8 x float> %v32, %load24
  %v37 = fadd contract <8 x float> %load35, %v36
  store <8 x float> %v37, ptr %acc3
  %load38 = load <8 x float>, ptr %acc4
  %v39 = add nsw i64 %v10, 128
  %p40 = getelementptr inbounds float, ptr %data1, i64 %v39
  %load41 = load float, ptr %p40, align 4
  %v42 = insertelement <8 x float> poison, float %load41, i64 0
  %v43 = shufflevector <8 x float> %v42, <8 x float> poison, <8 x i32> zeroinitializer
  %v44 = fmul contract <8 x float> %v43, %load18
  %v45 = fadd contract <8 x float> %load38, %v44
  store <8 x float> %v45, ptr %acc4
  %load46 = load <8 x float>, ptr %acc5
  %v47 = fmul contract <8 x float> %v43, %load24
  %v48 = fadd contract <8 x float> %load46, %v47
  store <8 x float> %v48, ptr %acc5
  %load49 = load <8 x float>, ptr %acc6
  %v50 = add nsw i64 %v10, 192
  %p51 = getelementptr inbounds float, ptr %data1, i64 %v50
  %load52 = load float, ptr %p51, align 4
  %v53 = insertelement <8 x float> poison, float %load52, i64 0
  %v54 = shufflevector <8 x float> %v53, <8 x float> poison, <8 x i32> zeroinitializer
  %v55 = fmul contract <8 x float> %v54, %load18
  %v56 = fadd contract <8 x float> %load49, %v55
  store <8 x float> %v56, ptr %acc6
  %load57 = load <8 x float>, ptr %acc7
  %v58 = fmul contract <8 x float> %v54, %load24
  %v59 = fadd contract <8 x float> %load57, %v58
  store <8 x float> %v59, ptr %acc7
  br label %r2_8_step
r2_8_step:
  %r2_8_next = add nuw nsw i64 %r2_8, 1
  br label %r2_8_test
r2_8_done:
  %load60 = load <8 x float>, ptr %acc0
  %v61 = add nsw i64 %v6, 8
  %p62 = getelementptr inbounds float, ptr %data0, i64 %v61
  %load63 = load <8 x float>, ptr %acc1
  %v64 = add nsw i64 %v6, 64
  %p65 = getelementptr inbounds float, ptr %data0, i64 %v64
  %load66 = load <8 x float>, ptr %acc2
  %v67 = add nsw i64 %v6, 72
  %p68 = getelementptr inbounds float, ptr %data0, i64 %v67
  %load69 = load <8 x float>, ptr %acc3
  %v70 = add nsw i64 %v6, 128
  %p71 = getelementptr inbounds float, ptr %data0, i64 %v70
  %load72 = load <8 x float>, ptr %acc4
  %v73 = add nsw i64 %v6, 136
  %p74 = getelementptr inbounds float, ptr %data0, i64 %v73
  %load75 = load <8 x float>, ptr %acc5
  %v76 = add nsw i64 %v6, 192
  %p77 = getelementptr inbounds float, ptr %data0, i64 %v76
  %load78 = load <8 x float>, ptr %acc6
  %v79 = add nsw i64 %v6, 200
  %p80 = getelementptr inbounds float, ptr %data0, i64 %v79
  %load81 = load <8 x float>, ptr %acc7
  store <8 x float> %load60, ptr %p7, align 4
  store <8 x float> %load63, ptr %p62, align 4
  store <8 x float> %load66, ptr %p65, align 4
  store <8 x float> %load69, ptr %p68, align 4
  store <8 x float> %load72, ptr %p71, align 4
  store <8 x float> %load75, ptr %p74, align 4
  store <8 x float> %load78, ptr %p77, align 4
  store <8 x float> %load81, ptr %p80, align 4
  br label %p1_0_0_1_step
p1_0_0_1_step:
  %p1_0_0_1_next = add nuw nsw i64 %p1_0_0_1, 1
  br label %p1_0_0_1_test
p1_0_0_1_done:
  ret void
}
define void @matmul(ptr %buffers, ptr %values, i64 %begin, i64 %end) nounwind {
  %b0 = getelementptr inbounds ptr, ptr %buffers, i64 0
  %buffer0 = load ptr, ptr %b0
  %b1 = getelementptr inbounds ptr, ptr %buffers, i64 1
  %buffer1 = load ptr, ptr %b1
  %b2 = getelementptr inbounds ptr, ptr %buffers, i64 2
  %buffer2 = load ptr, ptr %b2
  call void @matmul_body(ptr %buffer0, ptr %buffer1, ptr %buffer2, i64 %begin, i64 %end)
  ret void
}
