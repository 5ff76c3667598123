package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
)

// fakePodResources is kubelet's side of the API.
type fakePodResources struct {
	podresources.UnimplementedPodResourcesListerServer

	pods []*podresources.PodResources
	err  error
	hang chan struct{}
}

func (f *fakePodResources) List(context.Context, *podresources.ListPodResourcesRequest) (
	*podresources.ListPodResourcesResponse, error) {
	if f.hang != nil {
		<-f.hang
	}
	return &podresources.ListPodResourcesResponse{PodResources: f.pods}, f.err
}

// listen makes kubelet's socket below a root directory.
func listen(t *testing.T, root string) *net.UnixListener {
	t.Helper()
	dir := filepath.Join(root, "pod-resources")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "kubelet.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func serve(t *testing.T, root string, fake *fakePodResources) {
	t.Helper()
	l, server := listen(t, root), grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, fake)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() {
		if fake.hang != nil {
			close(fake.hang)
		}
		server.Stop()
		<-done
	})
}

func podNamed(namespace, name string) *podresources.PodResources {
	return &podresources.PodResources{Namespace: namespace, Name: name,
		Containers: []*podresources.ContainerResources{{Name: "main", CpuIds: []int64{1, 2}}}}
}

func believe(net.Conn, string) error { return nil }

func TestPodNames(t *testing.T) {
	many := make([]*podresources.PodResources, 0, 20<<10)
	for i := range cap(many) {
		many = append(many, podNamed("default", fmt.Sprint(i, strings.Repeat("x", 1<<10))))
	}
	tests := map[string]struct {
		fake *fakePodResources
		want map[string]int
		err  string // part of it
	}{
		"pods": {&fakePodResources{pods: []*podresources.PodResources{podNamed("default", "web-0"),
			podNamed("kube-system", "etcd-node"), {Namespace: "default", Name: "no-containers"}}},
			map[string]int{"default/web-0": 1, "kube-system/etcd-node": 1, "default/no-containers": 1}, ""},
		"two of a name": {&fakePodResources{pods: []*podresources.PodResources{podNamed("default", "web-0"),
			podNamed("default", "web-0")}}, map[string]int{"default/web-0": 2}, ""},
		"none":         {&fakePodResources{}, map[string]int{}, ""},
		"no name":      {&fakePodResources{pods: []*podresources.PodResources{podNamed("default", "")}}, nil, `a pod ""`},
		"no namespace": {&fakePodResources{pods: []*podresources.PodResources{podNamed("", "x")}}, nil, `namespace ""`},
		"too many":     {&fakePodResources{pods: many}, nil, "larger than max"},
		"rate limit": {&fakePodResources{err: status.Error(codes.ResourceExhausted, "rejected by rate limit")}, nil,
			"rejected by rate limit"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := hosttest.ShortDir(t)
			serve(t, root, test.fake)
			got, err := kubelet.PodNames(t.Context(), root, believe)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

func TestPodNamesOfNobody(t *testing.T) {
	tests := map[string]struct {
		make func(t *testing.T, root string)
		want error
	}{
		"no directory": {func(*testing.T, string) {}, fs.ErrNotExist},
		"nobody listens": {func(t *testing.T, root string) {
			l := listen(t, root)
			l.SetUnlinkOnClose(false)
			_ = l.Close()
		}, syscall.ECONNREFUSED},
		"a link to another socket": {func(t *testing.T, root string) {
			elsewhere := hosttest.ShortDir(t)
			serve(t, elsewhere, &fakePodResources{})
			if err := os.Symlink(filepath.Join(elsewhere, "pod-resources"), filepath.Join(root, "pod-resources")); err != nil {
				t.Fatal(err)
			}
		}, syscall.ELOOP},
		"it is unimplemented": {func(t *testing.T, root string) {
			l, server := listen(t, root), grpc.NewServer()
			go func() { _ = server.Serve(l) }()
			t.Cleanup(server.Stop)
		}, nil},
		"it closes the connection": {func(t *testing.T, root string) {
			l := listen(t, root)
			go func() {
				for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
					_ = conn.Close()
				}
			}()
		}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			root := hosttest.ShortDir(t)
			test.make(t, root)
			names, err := kubelet.PodNames(t.Context(), root, believe)
			if names != nil || err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("%v, %v", names, err)
			}
		})
	}
}

// A hanging call ends with the context, whether the server never greets or never answers.
func TestPodNamesHang(t *testing.T) {
	for name, serves := range map[string]bool{"before the greeting": false, "in the call": true} {
		t.Run(name, func(t *testing.T) {
			root := hosttest.ShortDir(t)
			if serves {
				serve(t, root, &fakePodResources{hang: make(chan struct{})})
			} else {
				listen(t, root)
			}
			ctx, cancel := context.WithCancelCause(t.Context())
			names, err := kubelet.PodNames(ctx, root, func(net.Conn, string) error {
				cancel(nil) // once it is connected
				return nil
			})
			if names != nil || err == nil || !errors.Is(err, context.Canceled) {
				t.Errorf("%v, %v", names, err)
			}
		})
	}
}

// A server that is not trusted gets no request: nothing is sent on the connection.
func TestPodNamesOfAnImpostor(t *testing.T) {
	root := hosttest.ShortDir(t)
	l := listen(t, root)
	sent := make(chan int)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			sent <- -1
			return
		}
		data, _ := io.ReadAll(conn)
		sent <- len(data)
	}()
	impostor := errors.New("not kubelet")
	names, err := kubelet.PodNames(t.Context(), root, func(net.Conn, string) error { return impostor })
	if names != nil || !errors.Is(err, impostor) {
		t.Errorf("%v, %v", names, err)
	}
	if n := <-sent; n != 0 {
		t.Errorf("%d bytes were sent", n)
	}
}
