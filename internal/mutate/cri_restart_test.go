package mutate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// A container is ended if it is the inspected one and runs. One that has ended meanwhile, or has been replaced, is left
// alone; one that hangs in the kernel is reported as still running.
func TestEndContainer(t *testing.T) {
	c := mutatetest.StartContainerd(t)
	n := mutatetest.New(t, func(p *host.Paths) { p.CRISocket = c.Socket })
	uid := mutatetest.UID(t)
	n.Cgroups(uid, "")
	parent := n.Host.Paths.CgroupRoot + "/kubepods/besteffort/pod" + uid
	sandbox := c.Sandbox(uid, parent, false)
	named := func(name string) func(*cri.ContainerConfig) {
		return func(config *cri.ContainerConfig) { config.Metadata.Name = name }
	}
	identity := func(of *cri.Container) mutate.RuntimeObject {
		return mutate.RuntimeObject{ID: of.Id, CreatedAt: of.CreatedAt}
	}
	state := func(of *cri.Container) cri.ContainerState {
		answer, err := c.Client.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: of.Id})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status.State
	}
	const running, exited = cri.ContainerState_CONTAINER_RUNNING, cri.ContainerState_CONTAINER_EXITED
	app, beside := c.Container(sandbox, parent), c.Container(sandbox, parent, named("beside"))

	another := identity(app)
	another.CreatedAt--
	if err := n.Mutator.EndContainer(t.Context(), another, time.Second); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("another of its name: %v", err)
	}
	if state(app) != running {
		t.Error("it was ended for another")
	}
	if err := n.Mutator.EndContainer(t.Context(), identity(app), time.Second); err != nil {
		t.Error(err)
	}
	if state(app) != exited || state(beside) != running {
		t.Errorf("it is %s, the one beside it %s", state(app), state(beside))
	}
	if err := n.Mutator.EndContainer(t.Context(), identity(app), time.Second); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("one that has ended: %v", err)
	}
	if err := n.Mutator.RemoveContainer(t.Context(), identity(app)); err != nil {
		t.Fatal(err)
	}
	if err := n.Mutator.EndContainer(t.Context(), identity(app), time.Second); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("one that is gone: %v", err)
	}

	hung := hosttest.HangingFUSE(t)
	stuck := c.Container(sandbox, parent, named("stuck"), func(config *cri.ContainerConfig) {
		config.Mounts = []*cri.Mount{{HostPath: filepath.Dir(hung), ContainerPath: "/x"}}
		config.Command, config.Args = []string{"/busybox"}, []string{"ls", "/x/" + filepath.Base(hung) + "/file"}
	})
	hangs(t, n.Host, stuck.Id)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := n.Mutator.EndContainer(ctx, identity(stuck), time.Second)
	if still, ok := errors.AsType[mutate.StillRuns](err); !ok || still.ID != stuck.Id || state(stuck) != running {
		t.Errorf("one that hangs: %v", err)
	}
}

// lateRuntime is a runtime on a busy node: it ends the container, loses the answer, and notices the end later.
type lateRuntime struct {
	cri.UnimplementedRuntimeServiceServer

	container cri.Container
	notices   time.Duration
	stopped   atomic.Pointer[time.Time]
}

func (r *lateRuntime) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	now := &cri.Container{Id: r.container.Id, CreatedAt: r.container.CreatedAt,
		State: cri.ContainerState_CONTAINER_RUNNING}
	if at := r.stopped.Load(); at != nil && time.Since(*at) >= r.notices {
		now.State = cri.ContainerState_CONTAINER_EXITED
	}
	return &cri.ListContainersResponse{Containers: []*cri.Container{now}}, nil
}

func (r *lateRuntime) StopContainer(context.Context, *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	now := time.Now()
	r.stopped.Store(&now)
	return nil, status.Error(codes.Unknown, "failed to kill container: ttrpc: closed: unknown")
}

// An ended container is reported as ended, even if the runtime notices late.
func TestEndContainerNoticedLate(t *testing.T) {
	late := &lateRuntime{container: cri.Container{Id: strings.Repeat("ab", 32), CreatedAt: 1}, notices: time.Second}
	socket := filepath.Join(t.TempDir(), "s")
	hosttest.ServeGRPC(t, socket, func(s *grpc.Server) { cri.RegisterRuntimeServiceServer(s, late) })
	n := mutatetest.New(t, func(p *host.Paths) { p.CRISocket = socket })
	object := mutate.RuntimeObject{ID: late.container.Id, CreatedAt: late.container.CreatedAt}
	if err := n.Mutator.EndContainer(t.Context(), object, time.Second); err != nil {
		t.Error(err)
	}
	late.notices = time.Hour
	err := n.Mutator.EndContainer(t.Context(), object, time.Second)
	if still, ok := errors.AsType[mutate.StillRuns](err); !ok || still.ID != object.ID ||
		!strings.Contains(err.Error(), "ttrpc: closed") {
		t.Errorf("one that runs on: %v", err)
	}
}

// hangs waits until the main process of a container is blocked on a filesystem.
func hangs(t *testing.T, h *host.Host, id string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	where := ""
	for !strings.Contains(where, "request_wait_answer") {
		select {
		case <-deadline:
			t.Fatalf("it waits in %q", where)
		case <-tick.C:
		}
		processes, err := h.ContainerProcesses(id)
		if err != nil {
			t.Fatal(err)
		}
		if main, ok := host.MainProcess(processes); ok {
			data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", main.PID))
			where = string(data)
		}
	}
}
