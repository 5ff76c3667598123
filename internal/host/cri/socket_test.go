package cri

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	leases "github.com/containerd/containerd/api/services/leases/v1"
	taskservice "github.com/containerd/containerd/api/services/tasks/v1"
	tasks "github.com/containerd/containerd/api/types/task"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

// fakeRuntime answers Version, and Status with the test's value.
type fakeRuntime struct {
	cri.UnimplementedRuntimeServiceServer
	name   string
	status *cri.StatusResponse
}

func (f *fakeRuntime) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: f.name}, nil
}

func (f *fakeRuntime) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return f.status, nil
}

func (f *fakeRuntime) ListContainers(context.Context, *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	if f.name == "" {
		return nil, status.Error(codes.Internal, "no list")
	}
	return &cri.ListContainersResponse{Containers: []*cri.Container{{Id: f.name}}}, nil
}

func newRuntime(t *testing.T, socket string) host.Runtime {
	t.Helper()
	runtime, closer, err := NewRuntime(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closer.Close() })
	return runtime
}

func TestRuntimeSocketAbsent(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "absent.sock")
	runtime := newRuntime(t, socket)
	start := time.Now()
	_, err := runtime.Version(hosttest.Within(t, time.Minute))
	if want := "dial unix " + socket + ": connect: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("%v, not %s", err, want)
	}
	if !errors.Is(err, fs.ErrNotExist) || status.Code(err) != codes.Unavailable {
		t.Errorf("Version() = %v, want Unavailable that wraps ErrNotExist", err)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("Version() of an absent socket took %s, want an error at once", took)
	}
}

func TestRuntimeSocketOfADeadDaemon(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "dead.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	listener.Close()
	_, err = newRuntime(t, socket).Version(hosttest.Within(t, time.Minute))
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Version() = %v, want one that wraps ECONNREFUSED", err)
	}
}

// A daemon that neither accepts (the kernel does, up to the backlog) nor answers, like a stopped one.
func TestRuntimeThatNeverAnswers(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "mute.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	runtime := newRuntime(t, socket)
	for range 2 {
		_, err = runtime.Status(hosttest.Within(t, 300*time.Millisecond))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Status() = %v, want one that wraps DeadlineExceeded", err)
		}
	}
}

func TestRuntimeThatSpeaksSomethingElse(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "http.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			conn.Close()
		}
	}()
	defer listener.Close()
	if _, err := newRuntime(t, socket).Version(hosttest.Within(t, time.Minute)); err == nil {
		t.Error("Version() succeeded on a server that speaks no gRPC")
	}
}

// A runtime that comes back answers the very next call, whatever happened before: there is no back-off.
func TestRuntimeComesBack(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "cri.sock")
	runtime := newRuntime(t, socket)
	for round, name := range []string{"first", "second", "third"} {
		for range 5 {
			if _, err := runtime.Version(hosttest.Within(t, time.Minute)); err == nil {
				t.Fatalf("round %d: Version() succeeded without a server", round)
			}
		}
		stop := hosttest.ServeGRPC(t, socket, func(s *grpc.Server) { cri.RegisterRuntimeServiceServer(s, &fakeRuntime{name: name}) })
		answer, err := runtime.Version(hosttest.Within(t, time.Minute))
		if err != nil || answer.RuntimeName != name {
			t.Fatalf("round %d: Version() = %v, %v; want %s at once", round, answer, err, name)
		}
		stop()
	}
}

// An old connection that broke between calls must not cost the next call.
func TestRuntimeRestartedBetweenCalls(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "cri.sock")
	runtime := newRuntime(t, socket)
	for _, name := range []string{"first", "second"} {
		stop := hosttest.ServeGRPC(t, socket, func(s *grpc.Server) { cri.RegisterRuntimeServiceServer(s, &fakeRuntime{name: name}) })
		answer, err := runtime.Version(hosttest.Within(t, time.Minute))
		if err != nil || answer.RuntimeName != name {
			t.Fatalf("Version() = %v, %v; want %s", answer, err, name)
		}
		stop()
	}
}

func TestRuntimeAnswerTooLarge(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "cri.sock")
	huge := &cri.StatusResponse{Info: map[string]string{"config": string(make([]byte, maxMessage+1))}}
	hosttest.ServeGRPC(t, socket, func(s *grpc.Server) { cri.RegisterRuntimeServiceServer(s, &fakeRuntime{status: huge}) })
	_, err := newRuntime(t, socket).Status(hosttest.Within(t, time.Minute))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("Status() = %v, want ResourceExhausted", err)
	}
}

// Lists makes the call of Containers: it fails where that does.
func TestRuntimeLists(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "cri.sock")
	fake := &fakeRuntime{name: "c"}
	hosttest.ServeGRPC(t, socket, func(s *grpc.Server) { cri.RegisterRuntimeServiceServer(s, fake) })
	runtime := newRuntime(t, socket)
	if err := runtime.Lists(hosttest.Within(t, time.Minute)); err != nil {
		t.Error(err)
	}
	if all, err := runtime.Containers(hosttest.Within(t, time.Minute)); err != nil || len(all) != 1 || all[0].GetId() != "c" {
		t.Errorf("Containers() = %v, %v", all, err)
	}
	fake.name = ""
	if err := runtime.Lists(hosttest.Within(t, time.Minute)); status.Code(err) != codes.Internal {
		t.Errorf("Lists() = %v, want Internal", err)
	}
}

func TestRuntimeClosed(t *testing.T) {
	runtime, closer, err := NewRuntime(filepath.Join(hosttest.ShortDir(t), "cri.sock"))
	if err != nil {
		t.Fatal(err)
	}
	closer.Close()
	if _, err := runtime.Version(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Version() after Close = %v, want ErrClosed", err)
	}
}

func TestNewRuntimeBadSocket(t *testing.T) {
	long := "/" + string(make([]byte, discover.MaxSocketPath))
	for _, socket := range []string{"", "relative.sock", "unix:///run/x.sock", long} {
		if _, _, err := NewRuntime(socket); err == nil {
			t.Errorf("NewRuntime(%.40q) succeeded", socket)
		}
	}
}

func TestRuntimeProcess(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "cri.sock")
	runtime := newRuntime(t, socket)
	if _, err := runtime.Process(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Process() without a socket = %v, want ErrNotExist", err)
	}
	hosttest.ServeGRPC(t, socket, func(s *grpc.Server) { cri.RegisterRuntimeServiceServer(s, &fakeRuntime{}) })
	process, err := runtime.Process(t.Context())
	if err != nil || process.PID != os.Getpid() || process.StartTime == 0 {
		t.Errorf("Process() = %+v, %v; want this process, %d", process, err, os.Getpid())
	}
}

type fakeContainerd struct {
	containers.UnimplementedContainersServer
	namespaces []string
}

func (f *fakeContainerd) List(ctx context.Context,
	_ *containers.ListContainersRequest) (*containers.ListContainersResponse, error) {
	incoming, _ := metadata.FromIncomingContext(ctx)
	f.namespaces = incoming["containerd-namespace"]
	return &containers.ListContainersResponse{Containers: []*containers.Container{{ID: "a"}}}, nil
}

type fakeLeases struct {
	leases.UnimplementedLeasesServer
}

func (fakeLeases) List(context.Context, *leases.ListRequest) (*leases.ListResponse, error) {
	return &leases.ListResponse{Leases: []*leases.Lease{{ID: "b"}}}, nil
}

type fakeTasks struct {
	taskservice.UnimplementedTasksServer
}

func (fakeTasks) List(context.Context, *taskservice.ListTasksRequest) (*taskservice.ListTasksResponse, error) {
	return &taskservice.ListTasksResponse{Tasks: []*tasks.Process{{ID: "c"}}}, nil
}

func TestContainerd(t *testing.T) {
	socket := filepath.Join(hosttest.ShortDir(t), "containerd.sock")
	fake := &fakeContainerd{}
	hosttest.ServeGRPC(t, socket, func(s *grpc.Server) {
		containers.RegisterContainersServer(s, fake)
		leases.RegisterLeasesServer(s, fakeLeases{})
		taskservice.RegisterTasksServer(s, fakeTasks{})
	})
	client, closer, err := NewContainerd(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	ctx := hosttest.Within(t, time.Minute)
	listed, err1 := client.Containers(ctx)
	leased, err2 := client.Leases(ctx)
	running, err3 := client.Tasks(ctx)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	got := []string{listed[0].ID, leased[0].ID, running[0].ID, fake.namespaces[0]}
	if diff := cmp.Diff([]string{"a", "b", "c", "k8s.io"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseListening(t *testing.T) {
	table := "Num       RefCount Protocol Flags    Type St Inode Path\n" +
		"00000000deb4dac4: 00000003 00000000 00000000 0001 03  1064\n" +
		"00000000ff60ebd2: 00000002 00000000 00010000 0001 01 10651 /run/a.sock\n" +
		"00000000ff60ebd3: 00000003 00000000 00000000 0001 03 10652 /run/a.sock\n" +
		"00000000ff60ebd4: 00000002 00000000 00010000 0001 01  1066 /run/with blank.sock\n" +
		"0000: 1 2 zz 4 5 6 /run/a.sock\nbroken\n"
	for path, want := range map[string]map[string]bool{
		"/run/a.sock":          {"10651": true},
		"/run/with blank.sock": {"1066": true},
		"/run/none.sock":       {},
	} {
		got := map[string]bool{}
		discover.ParseListening(table, func(inode, name string) {
			if name == path {
				got[inode] = true
			}
		})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
}
