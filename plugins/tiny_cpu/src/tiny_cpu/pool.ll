; Generated from pool.c and queue.c by hatch_build.py: change those, not this.

%struct.system_object = type { [16 x i64] }
%struct.record = type { ptr, ptr, ptr, i64, i64 }
%struct.command = type { i64, [5 x i64] }

define i64 @tc_pool_bytes() {
  ret i64 1024
}

define i64 @tc_pool_start(ptr %0, i64 %1, i64 %2, i64 %3) {
  %5 = alloca %struct.system_object, align 16
  %6 = alloca ptr, align 8
  %7 = getelementptr inbounds i8, ptr %0, i64 392
  store i64 %2, ptr %7, align 8
  %8 = icmp eq i64 %3, 0
  %9 = select i1 %8, i32 1, i32 6
  %10 = getelementptr inbounds i8, ptr %0, i64 400
  store i32 %9, ptr %10, align 16
  %11 = getelementptr inbounds i8, ptr %0, i64 512
  %12 = tail call i32 @pthread_mutex_init(ptr %11, ptr null)
  %13 = getelementptr inbounds i8, ptr %0, i64 640
  %14 = tail call i32 @pthread_mutex_init(ptr %13, ptr null)
  %15 = getelementptr inbounds i8, ptr %0, i64 768
  %16 = tail call i32 @pthread_cond_init(ptr %15, ptr null)
  %17 = getelementptr inbounds i8, ptr %0, i64 896
  %18 = tail call i32 @pthread_cond_init(ptr %17, ptr null)
  %19 = call i32 @pthread_attr_init(ptr %5)
  %20 = call i32 @pthread_attr_setstacksize(ptr %5, i64 8388608)
  %21 = select i1 %8, i32 1, i32 2
  %22 = call i32 @pthread_attr_setdetachstate(ptr %5, i32 %21)
  %23 = icmp sgt i64 %1, 0
  br i1 %23, label %24, label %31

24:
  %25 = phi i64 [ %29, %28 ], [ 0, %4 ]
  %26 = call i32 @pthread_create(ptr %6, ptr %5, ptr @worker, ptr %0)
  %27 = icmp eq i32 %26, 0
  br i1 %27, label %28, label %31

28:
  %29 = add nuw nsw i64 %25, 1
  %30 = icmp eq i64 %29, %1
  br i1 %30, label %31, label %24

31:
  %32 = phi i64 [ 0, %4 ], [ %25, %24 ], [ %1, %28 ]
  ret i64 %32
}

declare i32 @pthread_mutex_init(ptr, ptr)

declare i32 @pthread_cond_init(ptr, ptr)

declare i32 @pthread_attr_init(ptr)

declare i32 @pthread_attr_setstacksize(ptr, i64)

declare i32 @pthread_attr_setdetachstate(ptr, i32)

declare i32 @pthread_create(ptr, ptr, ptr, ptr)

define internal ptr @worker(ptr %0) {
  %2 = getelementptr inbounds i8, ptr %0, i64 256
  %3 = getelementptr inbounds i8, ptr %0, i64 264
  %4 = getelementptr inbounds i8, ptr %0, i64 272
  %5 = getelementptr inbounds i8, ptr %0, i64 280
  %6 = getelementptr inbounds i8, ptr %0, i64 288
  %7 = getelementptr inbounds i8, ptr %0, i64 128
  %8 = getelementptr inbounds i8, ptr %0, i64 388
  %9 = getelementptr inbounds i8, ptr %0, i64 640
  %10 = getelementptr inbounds i8, ptr %0, i64 896
  %11 = getelementptr inbounds i8, ptr %0, i64 392
  %12 = getelementptr inbounds i8, ptr %0, i64 640
  %13 = getelementptr inbounds i8, ptr %0, i64 384
  %14 = getelementptr inbounds i8, ptr %0, i64 768
  br label %15

15:
  %16 = phi i64 [ 0, %1 ], [ %20, %63 ]
  br label %17

17:
  %18 = phi i64 [ 0, %15 ], [ %28, %27 ]
  %19 = load atomic i64, ptr %0 acquire, align 128
  %20 = lshr i64 %19, 32
  %21 = icmp eq i64 %20, %16
  br i1 %21, label %22, label %43

22:
  %23 = add nsw i64 %18, 1
  %24 = load i64, ptr %11, align 8
  %25 = icmp slt i64 %23, %24
  br i1 %25, label %26, label %29

26:
  tail call void @relax()
  br label %27

27:
  %28 = phi i64 [ %23, %26 ], [ 0, %40 ]
  br label %17

29:
  %30 = tail call i32 @pthread_mutex_lock(ptr %12)
  %31 = atomicrmw add ptr %13, i32 1 seq_cst, align 128
  %32 = load atomic i64, ptr %0 seq_cst, align 128
  %33 = lshr i64 %32, 32
  %34 = icmp eq i64 %33, %16
  br i1 %34, label %35, label %40

35:
  %36 = tail call i32 @pthread_cond_wait(ptr %14, ptr %12)
  %37 = load atomic i64, ptr %0 seq_cst, align 128
  %38 = lshr i64 %37, 32
  %39 = icmp eq i64 %38, %16
  br i1 %39, label %35, label %40

40:
  %41 = atomicrmw sub ptr %13, i32 1 seq_cst, align 128
  %42 = tail call i32 @pthread_mutex_unlock(ptr %12)
  br label %27

43:
  %44 = phi i64 [ %57, %48 ], [ %19, %17 ]
  %45 = phi i32 [ %58, %48 ], [ undef, %17 ]
  %46 = and i64 %44, 2147483648
  %47 = icmp eq i64 %46, 0
  br i1 %47, label %60, label %48

48:
  %49 = add i64 %44, 1
  %50 = cmpxchg ptr %0, i64 %44, i64 %49 acquire monotonic, align 128
  %51 = extractvalue { i64, i1 } %50, 1
  %52 = extractvalue { i64, i1 } %50, 0
  %53 = xor i64 %52, %44
  %54 = icmp ugt i64 %53, 4294967295
  %55 = select i1 %54, i32 0, i32 %45
  %56 = select i1 %51, i1 true, i1 %54
  %57 = select i1 %56, i64 %44, i64 %52
  %58 = select i1 %51, i32 1, i32 %55
  %59 = select i1 %51, i1 true, i1 %54
  br i1 %59, label %60, label %43

60:
  %61 = phi i32 [ %58, %48 ], [ 0, %43 ]
  %62 = icmp eq i32 %61, 0
  br i1 %62, label %63, label %64

63:
  br label %15

64:
  %65 = load ptr, ptr %2, align 128
  %66 = load ptr, ptr %3, align 8
  %67 = load ptr, ptr %4, align 16
  %68 = load i64, ptr %5, align 8
  %69 = load i64, ptr %6, align 32
  %70 = atomicrmw add ptr %7, i64 %69 monotonic, align 128
  %71 = icmp slt i64 %70, %68
  br i1 %71, label %72, label %79

72:
  %73 = phi i64 [ %77, %72 ], [ %70, %64 ]
  %74 = sub nsw i64 %68, %73
  %75 = tail call i64 @llvm.smin.i64(i64 %74, i64 %69)
  %76 = add nsw i64 %75, %73
  tail call void %65(ptr %66, ptr %67, i64 %73, i64 %76)
  %77 = atomicrmw add ptr %7, i64 %69 monotonic, align 128
  %78 = icmp slt i64 %77, %68
  br i1 %78, label %72, label %79

79:
  %80 = atomicrmw sub ptr %0, i64 1 seq_cst, align 128
  %81 = and i64 %80, 4294967295
  %82 = icmp eq i64 %81, 1
  br i1 %82, label %83, label %63

83:
  %84 = load atomic i32, ptr %8 seq_cst, align 4
  %85 = icmp eq i32 %84, 0
  br i1 %85, label %63, label %86

86:
  %87 = tail call i32 @pthread_mutex_lock(ptr %9)
  %88 = tail call i32 @pthread_cond_signal(ptr %10)
  %89 = tail call i32 @pthread_mutex_unlock(ptr %9)
  br label %63
}

define void @tc_pool_run(ptr %0, ptr %1, ptr %2, ptr %3, i64 %4, i64 %5) {
  %7 = alloca %struct.record, align 8
  store ptr %1, ptr %7, align 8
  %8 = getelementptr inbounds i8, ptr %7, i64 8
  store ptr %2, ptr %8, align 8
  %9 = getelementptr inbounds i8, ptr %7, i64 16
  store ptr %3, ptr %9, align 8
  %10 = getelementptr inbounds i8, ptr %7, i64 24
  store i64 %4, ptr %10, align 8
  %11 = getelementptr inbounds i8, ptr %7, i64 32
  store i64 %5, ptr %11, align 8
  %12 = getelementptr inbounds i8, ptr %0, i64 512
  %13 = tail call i32 @pthread_mutex_lock(ptr %12)
  %14 = icmp sgt i64 %4, %5
  br i1 %14, label %15, label %17

15:
  %16 = call fastcc i64 @run_from(ptr %0, ptr %7, i64 0, i64 0)
  br label %18

17:
  tail call void %1(ptr %2, ptr %3, i64 0, i64 %4)
  br label %18

18:
  %19 = tail call i32 @pthread_mutex_unlock(ptr %12)
  ret void
}

declare i32 @pthread_mutex_lock(ptr)

declare i32 @pthread_mutex_unlock(ptr)

define i64 @tc_pool_run_slice(ptr %0, ptr %1, ptr %2, ptr %3, i64 %4, i64 %5, i64 %6) {
  %8 = alloca [2 x i64], align 16
  %9 = alloca %struct.record, align 8
  store ptr %1, ptr %9, align 8
  %10 = getelementptr inbounds i8, ptr %9, i64 8
  store ptr %2, ptr %10, align 8
  %11 = getelementptr inbounds i8, ptr %9, i64 16
  store ptr %3, ptr %11, align 8
  %12 = getelementptr inbounds i8, ptr %9, i64 24
  store i64 %5, ptr %12, align 8
  %13 = getelementptr inbounds i8, ptr %9, i64 32
  store i64 %6, ptr %13, align 8
  %14 = getelementptr inbounds i8, ptr %0, i64 512
  %15 = tail call i32 @pthread_mutex_lock(ptr %14)
  %16 = getelementptr inbounds i8, ptr %0, i64 400
  %17 = load i32, ptr %16, align 16
  %18 = call i32 @clock_gettime(i32 %17, ptr %8)
  %19 = load i64, ptr %8, align 16
  %20 = mul nsw i64 %19, 1000000000
  %21 = getelementptr inbounds i8, ptr %8, i64 8
  %22 = load i64, ptr %21, align 8
  %23 = add i64 %22, 50000000
  %24 = add i64 %23, %20
  %25 = call fastcc i64 @run_from(ptr %0, ptr %9, i64 %4, i64 %24)
  %26 = call i32 @pthread_mutex_unlock(ptr %14)
  ret i64 %25
}

define internal fastcc i64 @run_from(ptr %0, ptr %1, i64 %2, i64 range(i64 -9223372036804775808, -9223372036854775808) %3) {
  %5 = alloca [2 x i64], align 16
  %6 = getelementptr inbounds i8, ptr %0, i64 256
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 128 %6, ptr align 8 %1, i64 40, i1 false)
  %7 = getelementptr inbounds i8, ptr %0, i64 128
  store atomic i64 %2, ptr %7 monotonic, align 128
  %8 = load atomic i64, ptr %0 monotonic, align 128
  %9 = and i64 %8, -4294967296
  %10 = add i64 %9, 6442450944
  store atomic i64 %10, ptr %0 seq_cst, align 128
  %11 = getelementptr inbounds i8, ptr %0, i64 384
  %12 = load atomic i32, ptr %11 seq_cst, align 128
  %13 = icmp eq i32 %12, 0
  br i1 %13, label %20, label %14

14:
  %15 = getelementptr inbounds i8, ptr %0, i64 640
  %16 = tail call i32 @pthread_mutex_lock(ptr %15)
  %17 = getelementptr inbounds i8, ptr %0, i64 768
  %18 = tail call i32 @pthread_cond_broadcast(ptr %17)
  %19 = tail call i32 @pthread_mutex_unlock(ptr %15)
  br label %20

20:
  %21 = load ptr, ptr %6, align 128
  %22 = getelementptr inbounds i8, ptr %0, i64 264
  %23 = load ptr, ptr %22, align 8
  %24 = getelementptr inbounds i8, ptr %0, i64 272
  %25 = load ptr, ptr %24, align 16
  %26 = getelementptr inbounds i8, ptr %0, i64 280
  %27 = load i64, ptr %26, align 8
  %28 = getelementptr inbounds i8, ptr %0, i64 288
  %29 = load i64, ptr %28, align 32
  %30 = icmp eq i64 %3, 0
  %31 = getelementptr inbounds i8, ptr %0, i64 400
  %32 = getelementptr inbounds i8, ptr %5, i64 8
  br label %33

33:
  %34 = phi i64 [ undef, %20 ], [ %54, %52 ]
  %35 = atomicrmw add ptr %7, i64 %29 monotonic, align 128
  %36 = icmp slt i64 %35, %27
  br i1 %36, label %37, label %52

37:
  %38 = sub nsw i64 %27, %35
  %39 = call i64 @llvm.smin.i64(i64 %38, i64 %29)
  %40 = add nsw i64 %39, %35
  call void %21(ptr %23, ptr %25, i64 %35, i64 %40)
  br i1 %30, label %52, label %41

41:
  %42 = load i32, ptr %31, align 16
  %43 = call i32 @clock_gettime(i32 %42, ptr %5)
  %44 = load i64, ptr %5, align 16
  %45 = mul nsw i64 %44, 1000000000
  %46 = load i64, ptr %32, align 8
  %47 = add nsw i64 %45, %46
  %48 = icmp slt i64 %47, %3
  br i1 %48, label %52, label %49

49:
  %50 = atomicrmw xchg ptr %7, i64 %27 monotonic, align 128
  %51 = call i64 @llvm.smin.i64(i64 %50, i64 %27)
  br label %52

52:
  %53 = phi i1 [ false, %33 ], [ false, %49 ], [ true, %41 ], [ true, %37 ]
  %54 = phi i64 [ %27, %33 ], [ %51, %49 ], [ %34, %41 ], [ %34, %37 ]
  br i1 %53, label %33, label %55

55:
  %56 = atomicrmw and ptr %0, i64 -2147483649 seq_cst, align 128
  %57 = getelementptr inbounds i8, ptr %0, i64 392
  %58 = load i64, ptr %57, align 8
  %59 = icmp sgt i64 %58, 0
  br i1 %59, label %60, label %69

60:
  %61 = phi i64 [ %66, %65 ], [ 0, %55 ]
  %62 = load atomic i64, ptr %0 acquire, align 128
  %63 = and i64 %62, 2147483647
  %64 = icmp eq i64 %63, 0
  br i1 %64, label %85, label %65

65:
  call void @relax()
  %66 = add nuw nsw i64 %61, 1
  %67 = load i64, ptr %57, align 8
  %68 = icmp slt i64 %66, %67
  br i1 %68, label %60, label %69

69:
  %70 = getelementptr inbounds i8, ptr %0, i64 640
  %71 = call i32 @pthread_mutex_lock(ptr %70)
  %72 = getelementptr inbounds i8, ptr %0, i64 388
  store atomic i32 1, ptr %72 seq_cst, align 4
  %73 = load atomic i64, ptr %0 seq_cst, align 128
  %74 = and i64 %73, 2147483647
  %75 = icmp eq i64 %74, 0
  br i1 %75, label %83, label %76

76:
  %77 = getelementptr inbounds i8, ptr %0, i64 896
  br label %78

78:
  %79 = call i32 @pthread_cond_wait(ptr %77, ptr %70)
  %80 = load atomic i64, ptr %0 seq_cst, align 128
  %81 = and i64 %80, 2147483647
  %82 = icmp eq i64 %81, 0
  br i1 %82, label %83, label %78

83:
  store atomic i32 0, ptr %72 monotonic, align 4
  %84 = call i32 @pthread_mutex_unlock(ptr %70)
  br label %85

85:
  ret i64 %54
}

define void @tc_pool_run_many(ptr %0, ptr %1, i64 %2) {
  %4 = getelementptr inbounds i8, ptr %0, i64 512
  %5 = tail call i32 @pthread_mutex_lock(ptr %4)
  %6 = icmp sgt i64 %2, 0
  br i1 %6, label %9, label %7

7:
  %8 = tail call i32 @pthread_mutex_unlock(ptr %4)
  ret void

9:
  %10 = phi i64 [ %26, %25 ], [ 0, %3 ]
  %11 = getelementptr inbounds %struct.record, ptr %1, i64 %10
  %12 = getelementptr inbounds i8, ptr %11, i64 24
  %13 = load i64, ptr %12, align 8
  %14 = getelementptr inbounds i8, ptr %11, i64 32
  %15 = load i64, ptr %14, align 8
  %16 = icmp sgt i64 %13, %15
  br i1 %16, label %17, label %19

17:
  %18 = tail call fastcc i64 @run_from(ptr %0, ptr %11, i64 0, i64 0)
  br label %25

19:
  %20 = load ptr, ptr %11, align 8
  %21 = getelementptr inbounds i8, ptr %11, i64 8
  %22 = load ptr, ptr %21, align 8
  %23 = getelementptr inbounds i8, ptr %11, i64 16
  %24 = load ptr, ptr %23, align 8
  tail call void %20(ptr %22, ptr %24, i64 0, i64 %13)
  br label %25

25:
  %26 = add nuw nsw i64 %10, 1
  %27 = icmp eq i64 %26, %2
  br i1 %27, label %7, label %9
}

define i64 @tc_queue_bytes(i64 %0) {
  %2 = mul i64 %0, 48
  %3 = add i64 %2, 640
  ret i64 %3
}

define range(i64 0, 2) i64 @tc_queue_start(ptr %0, ptr %1, i64 %2, i64 %3, i64 %4) {
  %6 = getelementptr inbounds i8, ptr %0, i64 256
  store ptr %1, ptr %6, align 128
  %7 = getelementptr inbounds i8, ptr %0, i64 272
  store i64 %2, ptr %7, align 16
  %8 = getelementptr inbounds i8, ptr %0, i64 280
  store i64 %3, ptr %8, align 8
  %9 = icmp eq i64 %4, 0
  %10 = select i1 %9, i64 1, i64 6
  %11 = getelementptr inbounds i8, ptr %0, i64 288
  store i64 %10, ptr %11, align 32
  %12 = getelementptr inbounds i8, ptr %0, i64 304
  %13 = tail call i32 @pthread_mutex_init(ptr %12, ptr null)
  %14 = getelementptr inbounds i8, ptr %0, i64 432
  %15 = tail call i32 @pthread_cond_init(ptr %14, ptr null)
  %16 = getelementptr inbounds i8, ptr %0, i64 264
  %17 = tail call i32 @pthread_create(ptr %16, ptr null, ptr @consume, ptr %0)
  %18 = icmp eq i32 %17, 0
  %19 = zext i1 %18 to i64
  ret i64 %19
}

define internal ptr @consume(ptr %0) {
  %2 = getelementptr inbounds i8, ptr %0, i64 296
  %3 = load atomic i32, ptr %2 acquire, align 8
  %4 = icmp eq i32 %3, 0
  br i1 %4, label %5, label %48

5:
  %6 = getelementptr inbounds i8, ptr %0, i64 280
  %7 = getelementptr inbounds i8, ptr %0, i64 304
  %8 = getelementptr inbounds i8, ptr %0, i64 300
  %9 = getelementptr inbounds i8, ptr %0, i64 432
  %10 = getelementptr inbounds i8, ptr %0, i64 560
  %11 = getelementptr inbounds i8, ptr %0, i64 272
  %12 = getelementptr inbounds i8, ptr %0, i64 128
  br label %13

13:
  %14 = phi i64 [ 0, %5 ], [ %15, %41 ]
  %15 = add i64 %14, 1
  br label %16

16:
  %17 = load i64, ptr %6, align 8
  %18 = icmp sgt i64 %17, 0
  br i1 %18, label %19, label %26

19:
  %20 = phi i64 [ %24, %23 ], [ 0, %16 ]
  %21 = load atomic i64, ptr %0 acquire, align 8
  %22 = icmp ult i64 %21, %15
  br i1 %22, label %23, label %41

23:
  tail call void @relax()
  %24 = add nuw nsw i64 %20, 1
  %25 = icmp eq i64 %24, %17
  br i1 %25, label %26, label %19

26:
  %27 = tail call i32 @pthread_mutex_lock(ptr %7)
  store atomic i32 1, ptr %8 seq_cst, align 4
  %28 = load atomic i64, ptr %0 seq_cst, align 128
  %29 = icmp eq i64 %28, %14
  br i1 %29, label %30, label %37

30:
  %31 = load atomic i32, ptr %2 seq_cst, align 8
  %32 = icmp eq i32 %31, 0
  br i1 %32, label %33, label %37

33:
  %34 = tail call i32 @pthread_cond_wait(ptr %9, ptr %7)
  %35 = load atomic i64, ptr %0 seq_cst, align 128
  %36 = icmp eq i64 %35, %14
  br i1 %36, label %30, label %37

37:
  store atomic i32 0, ptr %8 seq_cst, align 4
  %38 = tail call i32 @pthread_mutex_unlock(ptr %7)
  %39 = load atomic i32, ptr %2 acquire, align 8
  %40 = icmp eq i32 %39, 0
  br i1 %40, label %16, label %48

41:
  %42 = load i64, ptr %11, align 16
  %43 = add i64 %42, -1
  %44 = and i64 %43, %14
  %45 = getelementptr inbounds %struct.command, ptr %10, i64 %44
  tail call fastcc void @execute(ptr %0, ptr %45)
  store atomic i64 %15, ptr %12 release, align 128
  %46 = load atomic i32, ptr %2 acquire, align 8
  %47 = icmp eq i32 %46, 0
  br i1 %47, label %13, label %48

48:
  ret ptr null
}

define i64 @tc_queue_submit(ptr %0, ptr %1, i64 %2) {
  %4 = load i64, ptr %0, align 128
  %5 = getelementptr inbounds i8, ptr %0, i64 272
  %6 = load i64, ptr %5, align 16
  %7 = getelementptr inbounds i8, ptr %0, i64 128
  %8 = load atomic i64, ptr %7 acquire, align 128
  %9 = sub i64 %6, %4
  %10 = add i64 %9, %8
  %11 = tail call i64 @llvm.umin.i64(i64 %2, i64 %10)
  %12 = icmp eq i64 %11, 0
  br i1 %12, label %17, label %13

13:
  %14 = getelementptr inbounds i8, ptr %0, i64 560
  %15 = load i64, ptr %5, align 16
  %16 = add i64 %15, -1
  br label %29

17:
  %18 = add i64 %11, %4
  store atomic i64 %18, ptr %0 seq_cst, align 128
  %19 = getelementptr inbounds i8, ptr %0, i64 300
  %20 = load atomic i32, ptr %19 seq_cst, align 4
  %21 = icmp eq i32 %20, 0
  br i1 %21, label %28, label %22

22:
  %23 = getelementptr inbounds i8, ptr %0, i64 304
  %24 = tail call i32 @pthread_mutex_lock(ptr %23)
  %25 = getelementptr inbounds i8, ptr %0, i64 432
  %26 = tail call i32 @pthread_cond_signal(ptr %25)
  %27 = tail call i32 @pthread_mutex_unlock(ptr %23)
  br label %28

28:
  ret i64 %11

29:
  %30 = phi i64 [ 0, %13 ], [ %35, %29 ]
  %31 = add i64 %30, %4
  %32 = and i64 %16, %31
  %33 = getelementptr inbounds %struct.command, ptr %14, i64 %32
  %34 = getelementptr inbounds %struct.command, ptr %1, i64 %30
  tail call void @llvm.memcpy.p0.p0.i64(ptr align 16 %33, ptr align 8 %34, i64 48, i1 false)
  %35 = add nuw i64 %30, 1
  %36 = icmp eq i64 %35, %11
  br i1 %36, label %17, label %29
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define void @tc_queue_stop(ptr %0) {
  %2 = getelementptr inbounds i8, ptr %0, i64 296
  store atomic i32 1, ptr %2 seq_cst, align 8
  %3 = getelementptr inbounds i8, ptr %0, i64 300
  %4 = load atomic i32, ptr %3 seq_cst, align 4
  %5 = icmp eq i32 %4, 0
  br i1 %5, label %12, label %6

6:
  %7 = getelementptr inbounds i8, ptr %0, i64 304
  %8 = tail call i32 @pthread_mutex_lock(ptr %7)
  %9 = getelementptr inbounds i8, ptr %0, i64 432
  %10 = tail call i32 @pthread_cond_signal(ptr %9)
  %11 = tail call i32 @pthread_mutex_unlock(ptr %7)
  br label %12

12:
  %13 = getelementptr inbounds i8, ptr %0, i64 264
  %14 = load ptr, ptr %13, align 8
  %15 = tail call i32 @pthread_join(ptr %14, ptr null)
  ret void
}

declare i32 @pthread_join(ptr, ptr)

define range(i64 0, 2) i64 @tc_queue_await(ptr %0, i64 %1, i64 %2, i64 %3) {
  %5 = icmp sgt i64 %2, 0
  br i1 %5, label %6, label %13

6:
  %7 = phi i64 [ %11, %10 ], [ 0, %4 ]
  %8 = load atomic i64, ptr %0 acquire, align 8
  %9 = icmp ult i64 %8, %1
  br i1 %9, label %10, label %23

10:
  tail call void @relax()
  %11 = add nuw nsw i64 %7, 1
  %12 = icmp eq i64 %11, %2
  br i1 %12, label %13, label %6

13:
  %14 = icmp sgt i64 %3, 0
  br i1 %14, label %18, label %23

15:
  %16 = add nuw nsw i64 %19, 1
  %17 = icmp eq i64 %16, %3
  br i1 %17, label %23, label %18

18:
  %19 = phi i64 [ %16, %15 ], [ 0, %13 ]
  %20 = tail call i32 @usleep(i32 20)
  %21 = load atomic i64, ptr %0 acquire, align 8
  %22 = icmp ult i64 %21, %1
  br i1 %22, label %15, label %23

23:
  %24 = phi i64 [ 1, %18 ], [ 0, %13 ], [ 0, %15 ], [ 1, %6 ]
  ret i64 %24
}

declare i32 @usleep(i32)

define void @tc_copy(ptr %0, ptr readnone %1, i64 %2, i64 %3) {
  %5 = load ptr, ptr %0, align 8
  %6 = getelementptr inbounds i8, ptr %5, i64 %2
  %7 = getelementptr inbounds i8, ptr %0, i64 8
  %8 = load ptr, ptr %7, align 8
  %9 = getelementptr inbounds i8, ptr %8, i64 %2
  %10 = sub nsw i64 %3, %2
  %11 = tail call ptr @memmove(ptr %6, ptr %9, i64 %10)
  ret void
}

declare ptr @memmove(ptr, ptr, i64)

declare void @relax()

declare i32 @pthread_cond_wait(ptr, ptr)

declare i32 @pthread_cond_signal(ptr)

declare i32 @pthread_cond_broadcast(ptr)

declare i32 @clock_gettime(i32, ptr)

define internal fastcc void @execute(ptr %0, ptr %1) {
  %3 = alloca %struct.record, align 8
  %4 = alloca [2 x i64], align 16
  %5 = getelementptr inbounds i8, ptr %1, i64 8
  %6 = load i64, ptr %1, align 8
  switch i64 %6, label %105 [
    i64 1, label %7
    i64 2, label %33
    i64 3, label %38
    i64 4, label %51
    i64 5, label %52
    i64 6, label %80
    i64 7, label %89
  ]

7:
  %8 = load i64, ptr %5, align 8
  %9 = inttoptr i64 %8 to ptr
  %10 = getelementptr inbounds i8, ptr %1, i64 16
  %11 = load i64, ptr %10, align 8
  %12 = getelementptr inbounds i8, ptr %0, i64 280
  %13 = load i64, ptr %12, align 8
  %14 = icmp sgt i64 %13, 0
  br i1 %14, label %15, label %22

15:
  %16 = phi i64 [ %20, %19 ], [ 0, %7 ]
  %17 = load atomic i64, ptr %9 acquire, align 8
  %18 = icmp ult i64 %17, %11
  br i1 %18, label %19, label %105

19:
  tail call void @relax()
  %20 = add nuw nsw i64 %16, 1
  %21 = icmp eq i64 %20, %13
  br i1 %21, label %22, label %15

22:
  %23 = getelementptr inbounds i8, ptr %0, i64 296
  %24 = load atomic i64, ptr %9 acquire, align 8
  %25 = icmp ult i64 %24, %11
  br i1 %25, label %26, label %105

26:
  %27 = load atomic i32, ptr %23 acquire, align 8
  %28 = icmp eq i32 %27, 0
  br i1 %28, label %29, label %105

29:
  %30 = tail call i32 @usleep(i32 20)
  %31 = load atomic i64, ptr %9 acquire, align 8
  %32 = icmp ult i64 %31, %11
  br i1 %32, label %26, label %105

33:
  %34 = load i64, ptr %5, align 8
  %35 = inttoptr i64 %34 to ptr
  %36 = getelementptr inbounds i8, ptr %1, i64 16
  %37 = load i64, ptr %36, align 8
  store atomic i64 %37, ptr %35 seq_cst, align 8
  br label %105

38:
  %39 = load i64, ptr %5, align 8
  %40 = inttoptr i64 %39 to ptr
  %41 = getelementptr inbounds i8, ptr %0, i64 288
  %42 = load i64, ptr %41, align 32
  %43 = trunc i64 %42 to i32
  %44 = call i32 @clock_gettime(i32 %43, ptr %4)
  %45 = load i64, ptr %4, align 16
  %46 = mul i64 %45, 1000000000
  %47 = getelementptr inbounds i8, ptr %4, i64 8
  %48 = load i64, ptr %47, align 8
  %49 = add i64 %46, %48
  %50 = getelementptr inbounds i8, ptr %40, i64 8
  store i64 %49, ptr %50, align 8
  br label %105

51:
  fence seq_cst
  br label %105

52:
  %53 = getelementptr inbounds i8, ptr %1, i64 32
  %54 = load i64, ptr %53, align 8
  %55 = getelementptr inbounds i8, ptr %1, i64 40
  %56 = load i64, ptr %55, align 8
  %57 = icmp sgt i64 %54, %56
  br i1 %57, label %64, label %58

58:
  %59 = load ptr, ptr %5, align 8
  %60 = getelementptr inbounds i8, ptr %1, i64 16
  %61 = load ptr, ptr %60, align 8
  %62 = getelementptr inbounds i8, ptr %1, i64 24
  %63 = load ptr, ptr %62, align 8
  tail call void %59(ptr %61, ptr %63, i64 0, i64 %54)
  br label %105

64:
  %65 = getelementptr inbounds i8, ptr %0, i64 256
  %66 = load ptr, ptr %65, align 128
  %67 = load ptr, ptr %5, align 8
  %68 = getelementptr inbounds i8, ptr %1, i64 16
  %69 = load ptr, ptr %68, align 8
  %70 = getelementptr inbounds i8, ptr %1, i64 24
  %71 = load ptr, ptr %70, align 8
  store ptr %67, ptr %3, align 8
  %72 = getelementptr inbounds i8, ptr %3, i64 8
  store ptr %69, ptr %72, align 8
  %73 = getelementptr inbounds i8, ptr %3, i64 16
  store ptr %71, ptr %73, align 8
  %74 = getelementptr inbounds i8, ptr %3, i64 24
  store i64 %54, ptr %74, align 8
  %75 = getelementptr inbounds i8, ptr %3, i64 32
  store i64 %56, ptr %75, align 8
  %76 = getelementptr inbounds i8, ptr %66, i64 512
  %77 = tail call i32 @pthread_mutex_lock(ptr %76)
  %78 = call fastcc i64 @run_from(ptr %66, ptr %3, i64 0, i64 0)
  %79 = tail call i32 @pthread_mutex_unlock(ptr %76)
  br label %105

80:
  %81 = load i64, ptr %5, align 8
  %82 = inttoptr i64 %81 to ptr
  %83 = getelementptr inbounds i8, ptr %1, i64 16
  %84 = load i64, ptr %83, align 8
  %85 = inttoptr i64 %84 to ptr
  %86 = getelementptr inbounds i8, ptr %1, i64 24
  %87 = load i64, ptr %86, align 8
  %88 = tail call ptr @memmove(ptr %82, ptr %85, i64 %87)
  br label %105

89:
  %90 = load i64, ptr %5, align 8
  %91 = inttoptr i64 %90 to ptr
  %92 = getelementptr inbounds i8, ptr %0, i64 296
  %93 = getelementptr inbounds i8, ptr %1, i64 16
  %94 = load i64, ptr %93, align 8
  %95 = icmp eq i64 %94, 0
  br i1 %95, label %105, label %96

96:
  %97 = phi i64 [ %102, %100 ], [ 0, %89 ]
  %98 = load atomic i32, ptr %92 acquire, align 8
  %99 = icmp eq i32 %98, 0
  br i1 %99, label %100, label %105

100:
  %101 = getelementptr inbounds %struct.command, ptr %91, i64 %97
  tail call fastcc void @execute(ptr %0, ptr %101)
  %102 = add nuw i64 %97, 1
  %103 = load i64, ptr %93, align 8
  %104 = icmp ult i64 %102, %103
  br i1 %104, label %96, label %105

105:
  ret void
}

declare i64 @llvm.smin.i64(i64, i64)

declare i64 @llvm.umin.i64(i64, i64)
