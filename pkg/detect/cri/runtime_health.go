// Package cri finds faults of the container runtime.
package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strconv"
	"syscall"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// runtime-health calls the container runtime's Version and Status over CRI; the conditions of Status look like this
// (`crictl info`):
//
//	{"type": "NetworkReady", "status": false, "reason": "NetworkPluginNotReady", "message": "cni plugin not initialized"}
//
// https://github.com/kubernetes/cri-api/blob/master/pkg/apis/runtime/v1/api.proto. Kubelet uses RuntimeReady and
// NetworkReady only, and takes a missing condition as false; so does this check.

// RuntimeHealthSettings are the thresholds of runtime-health.
type RuntimeHealthSettings struct {
	Timeout    time.Duration `yaml:"timeout"`    // a call that takes longer counts as no answer
	SlowAfter  time.Duration `yaml:"slowAfter"`  // Version or Status that takes longer is slow
	SlowBefore time.Duration `yaml:"slowBefore"` // and is healthy again below this
}

// DefaultRuntimeHealthSettings returns the settings that are used unless the configuration says otherwise.
func DefaultRuntimeHealthSettings() RuntimeHealthSettings {
	return RuntimeHealthSettings{Timeout: 8 * time.Second, SlowAfter: 4 * time.Second, SlowBefore: 2 * time.Second}
}

// RuntimeHealth finds a dead, stopped, hung or slow container runtime, or one that is not ready.
func RuntimeHealth(s RuntimeHealthSettings) detect.Check {
	return detect.Check{
		ID:      "runtime-health",
		Domain:  "kubernetes",
		Summary: "the container runtime does not answer, or reports that it or the pod network is not ready",
		Advice: "Check `journalctl -u containerd` (or crio) and `crictl info`. Running containers survive a restart " +
			"of the runtime. If the network is not ready, its CNI configuration is usually missing: check the pod of " +
			"the network plugin on this node.",
		Doc: detect.Doc{
			Reads: []string{"CRI Version and Status over the runtime's socket",
				"/proc/PID/stat of the runtime and its threads"},
			Why: "Without the runtime no container starts or ends. Running containers go on, so the fault may go " +
				"unnoticed.",
			Faults: []detect.Fault{
				{Reason: "RuntimeSocketMissing", Severity: finding.Fatal, When: "the socket does not exist"},
				{Reason: "RuntimeNotRunning", Severity: finding.Fatal, When: "no process listens on the socket"},
				{Reason: "RuntimeStopped", Severity: finding.Fatal, When: "its process is in state T: a signal or a " +
					"debugger stopped it"},
				{Reason: "RuntimeHung", Severity: finding.Fatal, When: "it does not answer and some of its threads " +
					"hang in the kernel (state D)"},
				{Reason: "RuntimeNotAnswering", Severity: finding.Fatal,
					When: "it accepts connections but does not answer within 8 s"},
				{Reason: "RuntimeFailing", Severity: finding.Fatal, When: "it answers with an error"},
				{Reason: "RuntimeNotReady", Severity: finding.Fatal,
					When: "its condition RuntimeReady is false or absent"},
				{Reason: "NetworkNotReady", Severity: finding.Fatal, When: "its condition NetworkReady is false or " +
					"absent: no pod with its own network namespace can start"},
				{Reason: "RuntimeSlow", Severity: finding.Warning, When: "Version or Status takes longer than 4 s; " +
					"healthy again below 2 s"},
			},
			FalseAlarms: "NetworkReady is false on a node that has just booted until its CNI DaemonSet has written " +
				"the configuration: not reported before 30 s. Other conditions of the runtime are ignored.",
		},
		Uses: []host.Setting{host.CRISocket},
		Condition: finding.Condition{
			Type: "ContainerRuntimeUnhealthy", ReadyType: "ContainerRuntimeReady",
			HealthyReason:  "ContainerRuntimeIsHealthy",
			HealthyMessage: "Container runtime on the node is functioning properly",
		},
		Every:    10 * time.Second,
		Deadline: 2*s.Timeout + 5*time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Runs: 2, For: 30 * time.Second}},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			seen, err := observeRuntime(ctx, h, s)
			if err != nil {
				return nil, err
			}
			return evaluateRuntime(seen, s)
		},
	}
}

// observation holds the readings of one run.
type observation struct {
	Socket     string
	Version    *cri.VersionResponse
	VersionErr error
	Status     *cri.StatusResponse // nil if Version failed
	StatusErr  error
	Latency    time.Duration // of the slower call
	ConnectErr error         // of the bare socket, tried only if a call failed
	Process    host.Process
	ProcessErr error
	Threads    checkkit.ThreadStates
}

func observeRuntime(ctx context.Context, h *host.Host, s RuntimeHealthSettings) (observation, error) {
	seen := observation{Socket: h.Paths.CRISocket, ProcessErr: hosterr.ErrNotConfigured}
	if h.Runtime.Version == nil || h.Runtime.Status == nil || seen.Socket == "" {
		return seen, finding.NotApplicable("no container runtime is configured on this host")
	}
	seen.Latency, seen.VersionErr = timed(ctx, s.Timeout, func(ctx context.Context) (err error) {
		seen.Version, err = h.Runtime.Version(ctx)
		return err
	})
	if seen.VersionErr == nil {
		var took time.Duration
		took, seen.StatusErr = timed(ctx, s.Timeout, func(ctx context.Context) (err error) {
			seen.Status, err = h.Runtime.Status(ctx)
			return err
		})
		seen.Latency = max(seen.Latency, took)
	}
	if err := ctx.Err(); err != nil {
		return seen, fmt.Errorf("ask the container runtime: %w", err)
	}
	err := seen.callErr()
	switch {
	case err == nil:
		return seen, nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, net.ErrClosed), errors.Is(err, hosterr.ErrDoubt):
		// the agent lacks the right, or closed the connection: that does not concern the runtime
		return seen, fmt.Errorf("ask the container runtime: %w", err)
	}
	return seen, explainSilence(ctx, h, &seen)
}

// explainSilence finds out why a call failed: the socket and the process behind it.
func explainSilence(ctx context.Context, h *host.Host, seen *observation) error {
	call, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	seen.ConnectErr = hosterr.ErrNotConfigured
	if h.Plugins.Connect != nil {
		seen.ConnectErr = h.Plugins.Connect(call, seen.Socket)
	}
	// whatever the call returned: the agent lacks the right to connect
	if errors.Is(seen.ConnectErr, fs.ErrPermission) {
		return fmt.Errorf("ask the container runtime: %w", seen.ConnectErr)
	}
	if errors.Is(errors.Join(seen.ConnectErr, seen.callErr()), fs.ErrNotExist) && h.NodeName == "" {
		return finding.NotApplicable("no container runtime serves %s on this host", seen.Socket)
	}
	if h.Runtime.Process != nil {
		seen.Process, seen.ProcessErr = h.Runtime.Process(call)
	}
	if seen.ProcessErr == nil {
		seen.Threads = checkkit.ReadThreadStates(h, seen.Process.PID)
	}
	return nil
}

// timed makes a call with its own time limit.
func timed(ctx context.Context, limit time.Duration, call func(context.Context) error) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	err := call(ctx)
	return time.Since(began), err
}

func (seen observation) callErr() error { return errors.Join(seen.VersionErr, seen.StatusErr) }

// networkSubject is the subject of NetworkReady.
func networkSubject() finding.Subject {
	return finding.Subject{Kind: "runtime-condition", Name: "NetworkReady"}
}

// evaluateRuntime returns the faults of the runtime. Without its answer, the state of the network is unknown.
func evaluateRuntime(seen observation, s RuntimeHealthSettings) ([]finding.Finding, error) {
	if err := seen.callErr(); err != nil {
		return []finding.Finding{seen.silent()}, finding.Partial(map[finding.Subject]error{networkSubject(): err})
	}
	var found []finding.Finding
	ready, message := runtimeCondition(seen.Status, cri.RuntimeReady)
	switch {
	case !ready:
		found = append(found, seen.found(finding.Fatal, "RuntimeNotReady",
			"the container runtime reports that it is not ready: %s: read its log", message))
	case seen.Latency >= s.SlowBefore:
		slow := seen.found(finding.Warning, "RuntimeSlow", "the container runtime took %s to answer: check for disk "+
			"pressure, and for very many containers or images", seen.Latency.Round(time.Millisecond))
		slow.BelowRaise = seen.Latency < s.SlowAfter
		found = append(found, slow)
	}
	if ready, message := runtimeCondition(seen.Status, cri.NetworkReady); !ready {
		f := seen.found(finding.Fatal, "NetworkNotReady", "the container runtime has no pod network: %s: check the "+
			"network plugin's pod on this node and its CNI configuration", message)
		f.Subject = networkSubject()
		found = append(found, f)
	}
	return found, nil
}

// silent returns why the runtime did not answer.
func (seen observation) silent() finding.Finding {
	err := checkkit.Sanitize(seen.callErr().Error(), 500)
	state := seen.Threads.Main
	why := errors.Join(seen.ConnectErr, seen.callErr()) // either may carry the kernel's error
	switch {
	case errors.Is(why, fs.ErrNotExist):
		return seen.found(finding.Fatal, "RuntimeSocketMissing", "the container runtime's socket %s does not exist: "+
			"start the runtime and read its log, or correct the path in the configuration", seen.Socket)
	case errors.Is(why, syscall.ECONNREFUSED):
		return seen.found(finding.Fatal, "RuntimeNotRunning", "no process listens on %s: the container runtime has "+
			"died; start it and read its log", seen.Socket)
	case state == 'T' || state == 't':
		return seen.found(finding.Fatal, "RuntimeStopped", "the container runtime %s is stopped by a signal or a "+
			"debugger: `kill -CONT %d` resumes it", seen.daemon(), seen.Process.PID)
	case seen.Threads.Blocked > 0:
		return seen.found(finding.Fatal, "RuntimeHung", "the container runtime %s does not answer; %d of its threads "+
			"hang in the kernel (state D): check for an unresponsive mount or disk (%s)", seen.daemon(),
			seen.Threads.Blocked, err)
	case isDeadline(seen.callErr()):
		return seen.found(finding.Fatal, "RuntimeNotAnswering", "the container runtime %s accepts connections but "+
			"does not answer within %s: read its log and restart it; running containers survive that", seen.daemon(),
			seen.Latency.Round(time.Millisecond))
	default:
		return seen.found(finding.Fatal, "RuntimeFailing",
			"the container runtime answers with an error: %s: read its log", err)
	}
}

func (seen observation) daemon() string {
	if seen.ProcessErr != nil {
		return "at " + seen.Socket
	}
	return fmt.Sprintf("%s (pid %d)", checkkit.Sanitize(seen.Process.Comm, 32), seen.Process.PID)
}

func (seen observation) found(severity finding.Severity, reason, format string, args ...any) finding.Finding {
	facts := map[string]string{"socket": seen.Socket, "latencyMilliseconds": fmt.Sprint(seen.Latency.Milliseconds())}
	if seen.Version != nil {
		facts["runtime"] = checkkit.Sanitize(seen.Version.RuntimeName+" "+seen.Version.RuntimeVersion, 100)
	}
	if seen.ProcessErr == nil && seen.Process.PID != 0 {
		facts["pid"], facts["command"] = strconv.Itoa(seen.Process.PID), checkkit.Sanitize(seen.Process.Comm, 32)
	}
	if seen.Threads.Main != 0 {
		facts["state"] = string(seen.Threads.Main)
	}
	return finding.Finding{
		Subject: finding.Subject{Kind: "container-runtime", Name: seen.Socket}, Severity: severity,
		Reason: reason, Message: fmt.Sprintf(format, args...), Facts: facts,
	}
}
