#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bucket.h"
#include "nccl_api.h"

using ::testing::_;
using ::testing::Return;

class MockNccl : public NcclApi {
 public:
  MOCK_METHOD(ncclResult_t, ncclAllReduce,
              (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t), (override));
  MOCK_METHOD(ncclResult_t, ncclBroadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t),
              (override));
};

TEST(Bucket, FlushesOnce) {
  MockNccl nccl;
  EXPECT_CALL(nccl, ncclAllReduce(_, _, 128, ncclFloat, ncclSum, _, _)).Times(1).WillOnce(Return(ncclSuccess));
  EXPECT_CALL(nccl, ncclBroadcast(_, _, _, _, _, _, _)).Times(0);
  Bucket bucket(&nccl, 128);
  bucket.add(64);
  bucket.add(64);
}
