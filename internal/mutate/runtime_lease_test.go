package mutate_test

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

// One lease is deleted, in one namespace, by ID and time. A lease stays if its ID has another form, or if its sandbox
// exists.
func TestDeleteRuntimeLease(t *testing.T) {
	c := mutatetest.StartContainerd(t)
	n := mutatetest.New(t, func(p *host.Paths) { p.CRISocket, p.ContainerdSocket = c.Socket, c.Socket })
	connection, err := grpc.NewClient("unix://"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	client := leasesapi.NewLeasesClient(connection)
	ctx := namespaces.WithNamespace(t.Context(), cri.Namespace)
	create := func(id string, labels map[string]string) mutate.RuntimeLease {
		t.Helper()
		answer, err := client.Create(ctx, &leasesapi.CreateRequest{ID: id, Labels: labels})
		if err != nil {
			t.Fatal(err)
		}
		return mutate.RuntimeLease{ID: id, CreatedAt: answer.GetLease().GetCreatedAt().AsTime().UnixNano()}
	}
	list := func() []string {
		t.Helper()
		answer, err := client.List(ctx, &leasesapi.ListRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, lease := range answer.GetLeases() {
			ids = append(ids, lease.GetID())
		}
		slices.Sort(ids)
		return ids
	}
	old := create(mutatetest.Hex(t, 64), nil)
	short := create("ctr-lease", nil)
	labelled := create(mutatetest.Hex(t, 64), map[string]string{"containerd.io/gc.expire": "2040-01-01T00:00:00Z"})
	contained := create(mutatetest.Hex(t, 64), nil)
	if _, err := containers.NewContainersClient(connection).Create(ctx, &containers.CreateContainerRequest{
		Container: &containers.Container{ID: contained.ID,
			Runtime: &containers.Container_Runtime{Name: "io.containerd.runc.v2"},
			Spec: &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Spec",
				Value: []byte("{}")}},
	}); err != nil {
		t.Fatal(err)
	}
	const group = "/nodeagent-test-lease"
	t.Cleanup(func() { // runs after the clean-up of the sandbox
		hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*")
		for _, dir := range append(hierarchies, "/sys/fs/cgroup") {
			if err := unix.Rmdir(dir + group); err != nil && !errors.Is(err, unix.ENOENT) {
				t.Error(err)
			}
		}
	})
	sandbox := c.Sandbox(mutatetest.UID(t), group, false)
	lives := mutate.RuntimeLease{ID: sandbox.Id}
	if !slices.Contains(list(), sandbox.Id) { // containerd 2 creates it itself
		lives = create(sandbox.Id, nil)
	}
	elsewhere := mutate.RuntimeLease{ID: mutatetest.Hex(t, 64)}
	other := metadata.AppendToOutgoingContext(t.Context(), "containerd-namespace", "moby")
	if _, err := client.Create(other, &leasesapi.CreateRequest{ID: elsewhere.ID}); err != nil {
		t.Fatal(err)
	}
	again := old
	again.CreatedAt++
	for name, try := range map[string]mutate.RuntimeLease{
		"another form": short, "labelled": labelled, "with a container": contained, "with a sandbox": lives,
		"made again": again,
	} {
		if err := n.Mutator.DeleteRuntimeLease(t.Context(), try); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if err := n.Mutator.DeleteRuntimeLease(t.Context(), again); !errors.Is(err, mutate.ErrChanged) {
		t.Errorf("made again: %v", err)
	}
	if err := n.Mutator.DeleteRuntimeLease(t.Context(), contained); !errors.Is(err, mutate.ErrBusy) {
		t.Errorf("with a container: %v", err)
	}
	before := list()
	for range 2 {
		if err := n.Mutator.DeleteRuntimeLease(t.Context(), old); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Mutator.DeleteRuntimeLease(t.Context(), elsewhere); err != nil {
		t.Error(err)
	}
	want := slices.DeleteFunc(before, func(id string) bool { return id == old.ID })
	if got := list(); !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if answer, err := client.List(other, &leasesapi.ListRequest{}); err != nil || len(answer.GetLeases()) != 1 {
		t.Errorf("another namespace's lease: %v, %v", answer.GetLeases(), err)
	}
	if err := mutatetest.New(t).Mutator.DeleteRuntimeLease(t.Context(), old); err == nil {
		t.Error("no containerd: no error")
	}
}
