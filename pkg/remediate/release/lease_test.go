package release

import (
	"context"
	"testing"

	"github.com/containerd/containerd/api/services/leases/v1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// leaseholder makes and lists leases of a real containerd in any namespace.
type leaseholder struct {
	t      *testing.T
	client leases.LeasesClient
}

func newLeaseholder(t *testing.T, c *mutatetest.Containerd) leaseholder {
	t.Helper()
	connection, err := grpc.NewClient("unix://"+c.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	return leaseholder{t, leases.NewLeasesClient(connection)}
}

func (l leaseholder) in(namespace string) context.Context {
	return metadata.AppendToOutgoingContext(l.t.Context(), "containerd-namespace", namespace)
}

func (l leaseholder) lease(namespace, id string, labels map[string]string) {
	l.t.Helper()
	if _, err := l.client.Create(l.in(namespace), &leases.CreateRequest{ID: id, Labels: labels}); err != nil {
		l.t.Fatal(err)
	}
}

// census adds all leases to a census.
func (l leaseholder) census(all map[string]string) map[string]string {
	l.t.Helper()
	for _, namespace := range []string{"k8s.io", "moby", "default"} {
		answer, err := l.client.List(l.in(namespace), &leases.ListRequest{})
		if err != nil {
			l.t.Fatal(err)
		}
		for _, lease := range answer.GetLeases() {
			all["lease "+namespace+" "+lease.GetID()] = lease.GetCreatedAt().AsTime().String()
		}
	}
	return all
}

// A crash of containerd left the lease of a sandbox and its network. Both go; no other lease does, however similar.
func TestReleaseLeaseOfADeadSandbox(t *testing.T) {
	hosttest.PrivateNetwork(t)
	w, c := runtimeWorld(t)
	held := newLeaseholder(t, c)
	_, alive := w.attachPod(w.living)
	held.lease("k8s.io", alive.ContainerID, nil)
	held.lease("k8s.io", "ctr-made-this", nil)
	held.lease("k8s.io", mutatetest.Hex(t, 64), map[string]string{"containerd.io/gc.expire": "2040-01-01T00:00:00Z"})
	held.lease("k8s.io", mutatetest.Hex(t, 64), nil) // of an unknown owner
	held.lease("default", mutatetest.Hex(t, 64), nil)
	before := held.census(w.networkCensus())

	dead := mutatetest.UID(t)
	_, attached := w.attachPod(dead)
	held.lease("k8s.io", attached.ContainerID, nil)
	held.lease("moby", attached.ContainerID, nil) // another engine's, by the same ID
	before["lease moby "+attached.ContainerID] = held.census(map[string]string{})["lease moby "+attached.ContainerID]
	outcome := w.release()
	want := map[object.Kind][]Result{
		object.CNIAttachment: {Released}, object.Netns: {Released}, object.Link: {Vanished},
		object.Lease: {Released},
	}
	if diff := cmp.Diff(want, results(outcome)); diff != "" {
		t.Error(diff, describe(outcome))
	}
	if diff := cmp.Diff(before, held.census(w.networkCensus())); diff != "" {
		t.Errorf("the node is not as it was: %s", diff)
	}
	if again := w.release(); len(again.Pods) > 0 {
		t.Errorf("a second time: %s", describe(again))
	}
}
