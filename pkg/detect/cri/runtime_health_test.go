package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// criStatus is an answer with the two conditions that kubelet uses.
func criStatus(runtime, network bool) *cri.StatusResponse {
	return &cri.StatusResponse{Status: &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: runtime, Reason: "R", Message: "runtime says"},
		{Type: cri.NetworkReady, Status: network, Reason: "NetworkPluginNotReady",
			Message: "cni plugin not initialized"},
		{Type: "ContainerdHasNoDeprecationWarnings", Status: false},
	}}}
}

func TestEvaluateRuntime(t *testing.T) {
	late := fmt.Errorf("version: %w", status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
	away := status.Error(codes.Unavailable, "connection error")
	const socket = "container-runtime//run/c.sock="
	tests := []struct {
		name    string
		seen    observation
		want    []string
		partial bool
	}{
		{name: "ready", seen: observation{Status: criStatus(true, true)}},
		{name: "runtime not ready", seen: observation{Status: criStatus(false, true)},
			want: []string{socket + "RuntimeNotReady"}},
		{name: "network not ready", seen: observation{Status: criStatus(true, false)},
			want: []string{"runtime-condition/NetworkReady=NetworkNotReady"}},
		{name: "neither", seen: observation{Status: criStatus(false, false)}, want: []string{socket + "RuntimeNotReady",
			"runtime-condition/NetworkReady=NetworkNotReady"}},
		{name: "conditions not reported", seen: observation{Status: &cri.StatusResponse{}},
			want: []string{socket + "RuntimeNotReady", "runtime-condition/NetworkReady=NetworkNotReady"}},
		{name: "rather slow", seen: observation{Status: criStatus(true, true), Latency: 3 * time.Second},
			want: []string{socket + "RuntimeSlow warning marginal"}},
		{name: "slow", seen: observation{Status: criStatus(true, true), Latency: 4 * time.Second},
			want: []string{socket + "RuntimeSlow warning"}},
		{name: "socket missing", seen: observation{VersionErr: away, ConnectErr: fs.ErrNotExist, ProcessErr: away},
			want: []string{socket + "RuntimeSocketMissing"}, partial: true},
		{name: "nobody listens", seen: observation{VersionErr: away, ConnectErr: syscall.ECONNREFUSED,
			ProcessErr: away}, want: []string{socket + "RuntimeNotRunning"}, partial: true},
		{name: "stopped", seen: observation{VersionErr: late, Threads: checkkit.ThreadStates{Main: 'T'}},
			want: []string{socket + "RuntimeStopped"}, partial: true},
		{name: "hung in the kernel", seen: observation{VersionErr: late, Threads: checkkit.ThreadStates{Main: 'S',
			Blocked: 1}}, want: []string{socket + "RuntimeHung"}, partial: true},
		{name: "silent", seen: observation{StatusErr: late, Threads: checkkit.ThreadStates{Main: 'S'}},
			want: []string{socket + "RuntimeNotAnswering"}, partial: true},
		{name: "backlog full", seen: observation{VersionErr: context.DeadlineExceeded, ConnectErr: syscall.EAGAIN,
			ProcessErr: away}, want: []string{socket + "RuntimeNotAnswering"}, partial: true},
		{name: "fails", seen: observation{VersionErr: status.Error(codes.Unimplemented, "unknown service")},
			want: []string{socket + "RuntimeFailing"}, partial: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.seen.Socket = "/run/c.sock"
			found, err := evaluateRuntime(tt.seen, DefaultRuntimeHealthSettings())
			if diff := cmp.Diff(tt.want, checktest.Reasons(found)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			partial, ok := errors.AsType[*finding.PartialError](err)
			if ok != tt.partial || ok && partial.Subjects[networkSubject()] == nil {
				t.Errorf("error %v, want doubt about the network: %t", err, tt.partial)
			}
		})
	}
}

// TestRuntimeWeMayNotAsk: without the right to use the socket, the state of the runtime is unknown.
func TestRuntimeWeMayNotAsk(t *testing.T) {
	refused := fmt.Errorf("dial: %w", syscall.EACCES)
	closing := status.Error(codes.Canceled, "grpc: the client connection is closing")
	for _, test := range []struct {
		name             string
		version, connect error
	}{
		{"the call says so", refused, nil},
		{"the call says something else, and the bare socket says so", closing, refused},
		{"the call has no answer", context.DeadlineExceeded, refused},
		{"the agent has closed the connection itself", fmt.Errorf("call: %w", net.ErrClosed), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := &host.Host{NodeName: "n", Paths: host.Paths{CRISocket: "/run/c.sock"}, Runtime: host.Runtime{
				Version: func(context.Context) (*cri.VersionResponse, error) { return nil, test.version },
				Status:  func(context.Context) (*cri.StatusResponse, error) { return nil, errors.New("not asked") },
			}}
			h.Plugins.Connect = func(context.Context, string) error { return test.connect }
			found, err := RuntimeHealth(DefaultRuntimeHealthSettings()).Run(t.Context(), h)
			_, partial := errors.AsType[*finding.PartialError](err)
			if len(found) > 0 || err == nil || partial {
				t.Errorf("%v, %v, want an error", found, err)
			}
		})
	}
}

func TestRuntimeHealthAgainstContainerd(t *testing.T) {
	c := mutatetest.StartContainerd(t)
	h := checktest.RuntimeHost(t, c.Socket)
	check := RuntimeHealth(RuntimeHealthSettings{Timeout: 3 * time.Second, SlowAfter: 3 * time.Second,
		SlowBefore: 3 * time.Second})
	subject := "container-runtime/" + c.Socket + "="

	// Alive, without a CNI configuration.
	found := checktest.AwaitFindings(t, check, h, []string{"runtime-condition/NetworkReady=NetworkNotReady"})
	t.Log(found[0].Message)

	c.Signal(syscall.SIGSTOP)
	found = checktest.AwaitFindings(t, check, h, []string{subject + "RuntimeStopped"})
	t.Log(found[0].Message, found[0].Facts)
	c.Signal(syscall.SIGCONT)
	checktest.AwaitFindings(t, check, h, []string{"runtime-condition/NetworkReady=NetworkNotReady"})

	c.Kill()
	found = checktest.AwaitFindings(t, check, h, []string{subject + "RuntimeNotRunning"})
	t.Log(found[0].Message)
	if err := os.Remove(c.Socket); err != nil {
		t.Fatal(err)
	}
	checktest.AwaitFindings(t, check, h, []string{subject + "RuntimeSocketMissing"})

	conf := `{"cniVersion":"0.4.0","name":"lo","plugins":[{"type":"loopback"}]}`
	if err := os.WriteFile(filepath.Join(c.ConfDir, "10-lo.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Start()
	checktest.AwaitFindings(t, check, h, nil)
}

func TestRuntimeHealthNotApplicable(t *testing.T) {
	h := &host.Host{Clock: host.Now, Plugins: kubelet.NewPlugins(t.TempDir())}
	_, err := RuntimeHealth(DefaultRuntimeHealthSettings()).Run(t.Context(), h)
	if _, ok := errors.AsType[*finding.NotApplicableError](err); !ok {
		t.Errorf("got %v, want not applicable", err)
	}
}

// A recorded runtime is healthy.
func TestRecordedRuntime(t *testing.T) {
	files := checktest.Recorded(t, "testdata/runtime-health/ok-recorded.txtar")
	o := observation{Version: &cri.VersionResponse{}, Status: &cri.StatusResponse{}}
	if err := errors.Join(json.Unmarshal(files["version.json"], o.Version),
		json.Unmarshal(files["status.json"], o.Status)); err != nil {
		t.Fatal(err)
	}
	found, err := evaluateRuntime(o, DefaultRuntimeHealthSettings())
	if found != nil || err != nil || o.Version.GetRuntimeName() != "containerd" {
		t.Errorf("%s: %v, %v", o.Version.GetRuntimeName(), found, err)
	}
}
