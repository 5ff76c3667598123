package cri_test

import (
	"context"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// configuredRuntime answers RuntimeConfig; without an answer it lacks the call, like containerd 1.6.
type configuredRuntime struct {
	cri.UnimplementedRuntimeServiceServer

	answer *cri.RuntimeConfigResponse
}

func (r configuredRuntime) RuntimeConfig(ctx context.Context, q *cri.RuntimeConfigRequest) (*cri.RuntimeConfigResponse,
	error) {
	if r.answer == nil {
		return r.UnimplementedRuntimeServiceServer.RuntimeConfig(ctx, q)
	}
	return r.answer, nil
}

func TestCgroupDriverOfRuntime(t *testing.T) {
	linux := func(driver cri.CgroupDriver) *cri.RuntimeConfigResponse {
		return &cri.RuntimeConfigResponse{Linux: &cri.LinuxRuntimeConfiguration{CgroupDriver: driver}}
	}
	for name, test := range map[string]struct {
		answer *cri.RuntimeConfigResponse
		want   string // empty: an error
	}{
		"systemd":      {linux(cri.CgroupDriver_SYSTEMD), host.SystemdDriver},
		"cgroupfs":     {linux(cri.CgroupDriver_CGROUPFS), host.CgroupfsDriver},
		"a new one":    {linux(7), ""},
		"says nothing": {&cri.RuntimeConfigResponse{}, ""},
		"no such call": {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			hosttest.ServeGRPC(t, socket, func(s *grpc.Server) {
				cri.RegisterRuntimeServiceServer(s, configuredRuntime{answer: test.answer})
			})
			runtime, closer, err := hostcri.NewRuntime(socket)
			if err != nil {
				t.Fatal(err)
			}
			defer closer.Close()
			if got, err := runtime.CgroupDriver(t.Context()); got != test.want || (err == nil) != (test.want != "") {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
