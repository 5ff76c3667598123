package mutate

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/proc"
)

// RuntimeContainer is the identity of a container that containerd has in the namespace of the CRI plugin, but that CRI
// does not list.
type RuntimeContainer struct {
	ID        string
	CreatedAt int64  // nanoseconds since the epoch
	UID       string // of the pod named in its labels
}

// Labels that the CRI plugin gives its containers.
const (
	kindLabel = "io.cri-containerd.kind" // container or sandbox
	uidLabel  = "io.kubernetes.pod.uid"
)

// lostContainer is such a container during a few calls.
type lostContainer struct {
	*Mutator
	wanted     RuntimeContainer
	containerd *client.Client
	record     containers.Container // as of the last check
}

// EndRuntimeTask ends the task of a container: SIGTERM, and after grace SIGKILL, both through containerd. It is no
// error if there is no task, or it has ended. Before each signal, the process must be the same one and in no other
// pod's cgroup.
func (d *Mutator) EndRuntimeTask(ctx context.Context, c RuntimeContainer, grace time.Duration) error {
	return d.onLostContainer(ctx, c, grace+stopSlack, func(ctx context.Context, l *lostContainer) error {
		task, err := l.task(ctx)
		if err != nil || hasEnded(task) {
			return err
		}
		first, err := l.taskProcess(task)
		if errors.Is(err, errGone) { // containerd has not noticed yet
			_, err = l.awaitTask(ctx, stopSlack/2)
		}
		if err != nil || first.StartTime == 0 {
			return err
		}
		if err := l.signal(ctx, unix.SIGTERM); err != nil {
			return err
		}
		if ended, err := l.awaitTask(ctx, grace); ended || err != nil {
			return err
		}
		if err := l.check(ctx); err != nil {
			return err
		}
		if task, err = l.task(ctx); err != nil || hasEnded(task) {
			return err
		}
		switch now, err := l.taskProcess(task); {
		case err != nil:
			return err
		case now != first:
			return changed("task %s is process %d, which started at %d, instead of %d of %d", c.ID, now.PID, now.StartTime,
				first.PID, first.StartTime)
		}
		if err := l.signal(ctx, unix.SIGKILL); err != nil {
			return err
		}
		if ended, err := l.awaitTask(ctx, stopSlack/2); ended || err != nil {
			return err
		}
		return fmt.Errorf("SIGKILL does not end its task: %s", d.Stuck(first))
	})
}

// DeleteRuntimeTask deletes the task of a container, which must have ended. containerd then ends its shim, and unmounts
// its root filesystem without force.
func (d *Mutator) DeleteRuntimeTask(ctx context.Context, c RuntimeContainer) error {
	return d.onLostContainer(ctx, c, stopSlack, func(ctx context.Context, l *lostContainer) error {
		task, err := l.task(ctx)
		if err != nil || task == nil {
			return err
		}
		if !hasEnded(task) {
			return fmt.Errorf("the task of container %s is %s: %w", c.ID, task.GetStatus(), ErrBusy)
		}
		_, err = l.containerd.TaskService().Delete(ctx, &tasksapi.DeleteTaskRequest{ContainerID: c.ID})
		if err = errgrpc.ToNative(err); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete task %s: %w", c.ID, err)
		}
		return nil
	})
}

// DeleteRuntimeContainer deletes a container without a task: its writable snapshot, its entry in containerd's sandbox
// store, and last its record, by which it is found again after a crash. Its root filesystem may not be a mount point:
// the mount would stay over a missing snapshot.
func (d *Mutator) DeleteRuntimeContainer(ctx context.Context, c RuntimeContainer) error {
	return d.onLostContainer(ctx, c, stopSlack, func(ctx context.Context, l *lostContainer) error {
		switch task, err := l.task(ctx); {
		case err != nil:
			return err
		case task != nil:
			return fmt.Errorf("container %s has a task: %w", c.ID, ErrBusy)
		}
		if err := l.notMounted(); err != nil {
			return err
		}
		if err := l.deleteSnapshot(ctx); err != nil {
			return err
		}
		if l.record.Labels[kindLabel] == "sandbox" {
			err := l.containerd.SandboxStore().Delete(ctx, c.ID)
			if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsNotImplemented(err) { // containerd 1.6 has no such store
				return fmt.Errorf("delete record of sandbox %s: %w", c.ID, err)
			}
		}
		if err := l.check(ctx); err != nil {
			return err
		}
		if err := l.containerd.ContainerService().Delete(ctx, c.ID); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete container %s: %w", c.ID, err)
		}
		return nil
	})
}

// onLostContainer makes sure that a container is the evaluated one and that CRI does not know it, and then changes it.
// It is no error if the container is gone.
func (d *Mutator) onLostContainer(ctx context.Context, c RuntimeContainer, limit time.Duration,
	change func(context.Context, *lostContainer) error) error {
	if !host.IsContainerID(c.ID) || c.UID == "" {
		return refuse("container %q of pod %q", c.ID, c.UID)
	}
	socket := d.host.Paths.ContainerdSocket
	if socket == "" || d.runtime == nil {
		return refuse("container %s: no containerd is configured", c.ID)
	}
	containerd, err := hostcri.ConnectContainerd(socket)
	if err != nil {
		return notBegun(fmt.Errorf("containerd %s: %w", socket, err))
	}
	defer containerd.Close()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, hostcri.Namespace), limit)
	defer cancel()
	l := &lostContainer{Mutator: d, wanted: c, containerd: containerd}
	if err := l.check(ctx); err != nil {
		return notBegun(hosterr.Ignore(err, errGone))
	}
	return hosterr.Ignore(change(ctx, l), errGone)
}

// check reads the record, and makes sure that it is the evaluated one and that CRI does not know its ID. errGone: there
// is no record any more.
func (l *lostContainer) check(ctx context.Context) (err error) {
	id := l.wanted.ID
	l.record, err = l.containerd.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return errGone
	}
	if err != nil {
		return fmt.Errorf("container %s: %w", id, err)
	}
	switch created, uid := l.record.CreatedAt.UnixNano(), l.record.Labels[uidLabel]; {
	case created != l.wanted.CreatedAt:
		return changed("container %s was created at %d instead of %d", id, created, l.wanted.CreatedAt)
	case uid != l.wanted.UID:
		return changed("container %s is of pod %q instead of %q", id, uid, l.wanted.UID)
	case l.record.Labels[kindLabel] == "":
		return refuse("container %s was created by hand: it has no label %s", id, kindLabel)
	}
	return l.unknownToCRI(ctx, id)
}

// unknownToCRI makes sure that CRI has neither a sandbox nor a container of an ID.
func (d *Mutator) unknownToCRI(ctx context.Context, id string) error {
	_, err := d.runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	if err := mustBeMissing("CRI has the container "+id, err); err != nil {
		return err
	}
	_, err = d.runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
	return mustBeMissing("CRI has the sandbox "+id, err)
}

// mustBeMissing turns the result of a lookup for an object that must not exist into an error. what states that it
// exists.
func mustBeMissing(what string, err error) error {
	switch {
	case err == nil:
		return fmt.Errorf("%s: %w", what, ErrBusy)
	case !errdefs.IsNotFound(err) && !errdefs.IsNotFound(errgrpc.ToNative(err)): // CRI answers with a gRPC status
		return fmt.Errorf("whether %s: %w", what, err)
	}
	return nil
}

// task returns the task of the container, or nil if it has none.
func (l *lostContainer) task(ctx context.Context) (*tasktypes.Process, error) {
	answer, err := l.containerd.TaskService().Get(ctx, &tasksapi.GetRequest{ContainerID: l.wanted.ID})
	if errdefs.IsNotFound(errgrpc.ToNative(err)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("task %s: %w", l.wanted.ID, err)
	}
	return answer.GetProcess(), nil
}

// hasEnded reports whether a task has ended; nil counts as ended.
func hasEnded(task *tasktypes.Process) bool {
	return task == nil || task.GetStatus() == tasktypes.Status_STOPPED
}

// taskProcess returns the first process of a task, which must not be in the cgroup of another pod.
func (l *lostContainer) taskProcess(task *tasktypes.Process) (Process, error) {
	p := Process{PID: int(task.GetPid()), UID: l.wanted.UID}
	if p.PID <= 1 {
		return p, refuse("the task of container %s is process %d", l.wanted.ID, p.PID)
	}
	stat, err := l.host.ProcStat(p.PID)
	if proc.Gone(err) {
		return p, errGone
	}
	if err != nil {
		return p, err
	}
	p.StartTime = stat.StartTime
	cgroups, err := l.host.ProcCgroups(p.PID)
	if proc.Gone(err) {
		return p, errGone
	}
	if err != nil {
		return p, err
	}
	for _, name := range cgroups {
		if uid, _, ok := l.host.Paths.PodOfCgroup(name); ok && uid != l.wanted.UID {
			return p, changed("process %d of container %s is in a cgroup of pod %s", p.PID, l.wanted.ID, uid)
		}
	}
	return p, nil
}

func (l *lostContainer) signal(ctx context.Context, signal unix.Signal) error {
	_, err := l.containerd.TaskService().Kill(ctx, &tasksapi.KillRequest{ContainerID: l.wanted.ID,
		Signal: uint32(signal)})
	if err = errgrpc.ToNative(err); err != nil && !errdefs.IsNotFound(err) { // it has ended meanwhile
		return fmt.Errorf("signal %d to task %s: %w", signal, l.wanted.ID, err)
	}
	return nil
}

// awaitTask waits at most for the given time until the task has ended, and reports whether it has.
func (l *lostContainer) awaitTask(ctx context.Context, most time.Duration) (bool, error) {
	deadline := time.NewTimer(most)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if task, err := l.task(ctx); err != nil || hasEnded(task) {
			return err == nil, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-deadline.C:
			return false, nil
		case <-tick.C:
		}
	}
}

// notMounted makes sure that the container's root filesystem is not mounted.
func (l *lostContainer) notMounted() error {
	mounts, err := mount.Table(l.host)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(mounts, func(m mount.Mount) bool {
		bundle := path.Dir(m.Point)
		return path.Base(m.Point) == "rootfs" && strings.TrimPrefix(path.Base(bundle), ".") == l.wanted.ID
	})
	if at >= 0 {
		return fmt.Errorf("its root filesystem is mounted on %s: %w", mounts[at].Point, ErrBusy)
	}
	return nil
}

// deleteSnapshot deletes the writable snapshot whose key is the container's own ID. Another container may share a
// snapshot with another form of key: that stays.
func (l *lostContainer) deleteSnapshot(ctx context.Context) error {
	if l.record.SnapshotKey != l.wanted.ID || l.record.Snapshotter == "" {
		return nil
	}
	err := l.containerd.SnapshotService(l.record.Snapshotter).Remove(ctx, l.wanted.ID)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete snapshot %s: %w", l.wanted.ID, err)
	}
	return nil
}
