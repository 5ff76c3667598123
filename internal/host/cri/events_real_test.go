package cri_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// containerd 2 sends the start and the end of a container to each client that follows its events; containerd 1 is not
// asked.
func TestRealContainerEvents(t *testing.T) {
	t.Run("Debian's", followEvents)
	built, _ := filepath.Glob("../../../.cache/containerd-v2*/containerd") // the pattern is well-formed
	if len(built) == 0 {
		return // labctl has not built it
	}
	dir, err := filepath.Abs(filepath.Dir(built[len(built)-1]))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Run("2", followEvents)
}

func followEvents(t *testing.T) {
	c := mutatetest.StartContainerd(t)
	runtime, closer, err := cri.NewRuntime(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	version, err := runtime.Version(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(hosttest.Within(t, time.Minute))
	events, ended := make(chan *api.ContainerEventResponse, 100), make(chan error, 1)
	go func() {
		ended <- runtime.Events(ctx, func(r *api.ContainerEventResponse) { events <- r })
	}()
	if strings.HasPrefix(strings.TrimPrefix(version.GetRuntimeVersion(), "v"), "1.") {
		if err := <-ended; !errors.Is(err, hosterr.ErrNotConfigured) {
			t.Errorf("containerd 1: %v", err)
		}
		cancel()
		return
	}
	const uid = "0a1b2c3d-0000-4000-8000-000000000001"
	sandbox := c.Sandbox(uid, "", false)
	container := c.Container(sandbox, "")
	wait := func(id string, kind api.ContainerEventType) {
		t.Helper()
		for {
			select {
			case r := <-events:
				if r.ContainerId != id || r.ContainerEventType != kind {
					continue
				}
				if s := r.GetPodSandboxStatus(); s.GetId() != sandbox.Id || s.GetMetadata().GetUid() != uid || time.Since(time.Unix(0, r.CreatedAt)).Abs() > time.Minute {
					t.Errorf("%s: %+v", kind, r)
				}
				return
			case err := <-ended:
				t.Fatalf("no %s of %s: %v", kind, id, err)
			}
		}
	}
	wait(sandbox.Id, api.ContainerEventType_CONTAINER_STARTED_EVENT)
	wait(container.Id, api.ContainerEventType_CONTAINER_STARTED_EVENT)
	if _, err := c.Client.StopContainer(t.Context(), &api.StopContainerRequest{ContainerId: container.Id}); err != nil {
		t.Fatal(err)
	}
	wait(container.Id, api.ContainerEventType_CONTAINER_STOPPED_EVENT)
	cancel()
	if err := <-ended; !errors.Is(ctx.Err(), context.Canceled) || err == nil {
		t.Errorf("after its end: %v", err)
	}
}
