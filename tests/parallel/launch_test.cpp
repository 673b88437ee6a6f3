// SPDX-License-Identifier: Apache-2.0
#include "moesaic/parallel/launch.h"

#include <map>

#include "base/support.h"
#include "support/matchers.h"

namespace moesaic {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch_in(const Variables& variables) {
  return read_launch([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string launch_error(const Variables& variables) {
  return test::usage_of([&] { launch_in(variables); });
}

TEST(Launch, WithoutVariablesTheProcessIsAlone) {
  EXPECT_TRUE(launch_in({}).is_single_process());
  EXPECT_EQ(launch_in({}).rank, 0);
}

TEST(Launch, TorchrunSaysWhoIsWhere) {
  const Launch launch = launch_in({{"RANK", "3"},
                                   {"WORLD_SIZE", "4"},
                                   {"LOCAL_RANK", "1"},
                                   {"MASTER_ADDR", "node7"},
                                   {"MASTER_PORT", "1234"},
                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                   {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.world_size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.address, "node7");
  EXPECT_EQ(launch.port, 1234);
  EXPECT_TRUE(launch.has_external_store);
  EXPECT_EQ(launch.attempt, "2");
}

TEST(Launch, OpenMpiOnOneMachineMeetsThere) {
  const Launch launch = launch_in({{"OMPI_COMM_WORLD_RANK", "1"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.address, "127.0.0.1");
  EXPECT_FALSE(launch.has_external_store);
}

TEST(Launch, OpenMpiOnSeveralMachinesNeedsAnAddress) {
  EXPECT_THAT(launch_error({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
              HasSubstr("OMPI_COMM_WORLD_SIZE is 2 and MASTER_ADDR is not set"));
}

TEST(Launch, AStepOfSlurmMeetsOnItsFirstHost) {
  Variables variables = {{"SLURM_PROCID", "2"},
                         {"SLURM_STEP_NUM_TASKS", "16"},
                         {"SLURM_LOCALID", "2"},
                         {"SLURM_STEP_NODELIST", "gpu[03-04,09],login1"}};
  EXPECT_EQ(launch_in(variables).address, "gpu03");
  variables["SLURM_STEP_NODELIST"] = "gpu12,gpu[13-14]";
  EXPECT_EQ(launch_in(variables).address, "gpu12");
  variables["SLURM_STEP_NODELIST"] = "rack[0-1]gpu[03-04,09]-ib,login1";
  EXPECT_EQ(launch_in(variables).address, "rack0gpu03-ib");
}

TEST(Launch, ABatchScriptOfSlurmIsOneProcess) {
  EXPECT_TRUE(launch_in({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}}).is_single_process());
}

TEST(Launch, RefusesVariablesThatAreHalfSetOrNoNumbers) {
  EXPECT_THAT(launch_error({{"RANK", "0"}}), HasSubstr("RANK is set and WORLD_SIZE is not"));
  EXPECT_THAT(launch_error({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is set and RANK is not"));
  EXPECT_THAT(launch_error({{"RANK", "x"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("RANK must be a number from 0 to 1, not 'x'"));
  EXPECT_THAT(launch_error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("RANK must be a number from 0 to 1, not '2'"));
  EXPECT_THAT(
      launch_error(
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}}),
      HasSubstr("MASTER_PORT must be a number from 1 to 65535"));
  EXPECT_THAT(launch_error({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(launch_error({{"OMPI_COMM_WORLD_RANK", "1"}}),
              HasSubstr("OMPI_COMM_WORLD_RANK is set and OMPI_COMM_WORLD_SIZE is not"));
  EXPECT_THAT(launch_error({{"OMPI_COMM_WORLD_SIZE", "2"}}),
              HasSubstr("OMPI_COMM_WORLD_SIZE is set and OMPI_COMM_WORLD_RANK is not"));
  EXPECT_THAT(launch_error({{"SLURM_STEP_NUM_TASKS", "2"}}),
              HasSubstr("SLURM_STEP_NUM_TASKS is set and SLURM_PROCID is not"));
  EXPECT_THAT(launch_error({{"RANK", "0"}, {"WORLD_SIZE", "65537"}}),
              HasSubstr("WORLD_SIZE must be a number from 1 to 65536, not '65537'"));
  EXPECT_THAT(launch_error({{"PMI_RANK", "0"}}), HasSubstr("PMI_RANK is set and PMI_SIZE is not"));
}

}  // namespace
}  // namespace moesaic
