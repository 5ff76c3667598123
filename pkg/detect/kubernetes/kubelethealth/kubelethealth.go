// Package kubelethealth finds a kubelet that does not run, hangs, or reports itself unhealthy.
package kubelethealth

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// kubelet-health reads kubelet's healthz endpoint (GET http://127.0.0.1:10248/healthz answers "ok") and /proc/PID/stat
// of its process:
//
//	1234 (kubelet) T 1 1234 1234 0 -1 …       field 3 is the state: T stopped, D in the kernel, Z dead but not reaped
//
// https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/ (healthzPort),
// https://docs.kernel.org/filesystems/proc.html (stat).

// Settings are the thresholds of kubelet-health.
type Settings struct {
	Timeout    time.Duration `yaml:"timeout"`    // healthz that takes longer counts as no answer
	SlowAfter  time.Duration `yaml:"slowAfter"`  // healthz that takes longer is slow
	SlowBefore time.Duration `yaml:"slowBefore"` // and is healthy again below this
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise. A healthy kubelet answers
// healthz within milliseconds; its supervisors commonly allow five seconds.
func DefaultSettings() Settings {
	return Settings{Timeout: 5 * time.Second, SlowAfter: 2 * time.Second, SlowBefore: time.Second}
}

// Whether requests reach kubelet at all is verified by a connection, after a failure and now and then.
const (
	interceptTimeout = 2 * time.Second
	verifyEvery      = 10 * time.Minute
)

// New finds a dead, stopped, hung or slow kubelet, or one that reports itself unhealthy.
func New(s Settings) detect.Check {
	owners := &portOwner{}
	return detect.Check{
		ID:      "kubelet-health",
		Domain:  "kubernetes",
		Summary: "kubelet does not run, does not answer, or reports that it is not healthy",
		Advice: "Check `journalctl -u kubelet` and `systemctl status kubelet`. Resume a stopped kubelet with `kill " +
			"-CONT`. One that hangs in the kernel (state D) usually waits for an unresponsive mount or disk: restore " +
			"that before restarting kubelet.",
		Doc: detect.Doc{
			Reads: []string{"GET http://127.0.0.1:10248/healthz", "/proc/PID/stat of kubelet and its threads"},
			Why: "Without kubelet no pod is started, probed or ended on this node; the cluster notices after 40 " +
				"seconds at best.",
			Faults: []detect.Fault{
				{Reason: "KubeletNotRunning", Severity: finding.Fatal, When: "there is no process of that name and " +
					"no answer from healthz"},
				{Reason: "KubeletStopped", Severity: finding.Fatal, When: "its process is in state T: a signal or a " +
					"debugger stopped it"},
				{Reason: "KubeletHung", Severity: finding.Fatal, When: "healthz does not answer and some of " +
					"kubelet's threads hang in the kernel (state D)"},
				{Reason: "KubeletNotAnswering", Severity: finding.Fatal,
					When: "it accepts connections but healthz does not answer within 5 s, the time its supervisors " +
						"commonly allow"},
				{Reason: "KubeletNotListening", Severity: finding.Fatal,
					When: "its process runs, but no process listens on the healthz port"},
				{Reason: "KubeletPortTaken", Severity: finding.Warning,
					When: "another process listens on the healthz port"},
				{Reason: "KubeletHealthzFailed", Severity: finding.Fatal, When: "healthz answers that kubelet is not " +
					"healthy; the message names the checks that failed"},
				{Reason: "KubeletSlow", Severity: finding.Warning,
					When: "healthz takes longer than 2 s; healthy again below 1 s"},
			},
			FalseAlarms: "A kubelet that restarts for an upgrade is not reported before 20 s. For one that is part " +
				"of another process an answer from healthz is enough. If a pod has the port of healthz as its hostPort, " +
				"no answer says anything about kubelet, and the check cannot tell.",
		},
		Condition: checkkit.KubeletProblem(),

		Every:    10 * time.Second,
		Deadline: s.Timeout + 3*time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Runs: 2, For: 20 * time.Second}},
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			seen, err := observeKubelet(ctx, h, s, owners)
			if err != nil {
				return nil, err
			}
			return evaluateKubelet(seen, s)
		},
	}
}

// observation holds the readings of one run.
type observation struct {
	URL        string
	Process    host.Process
	ProcessErr error // wraps fs.ErrNotExist: no kubelet runs
	Age        time.Duration
	Threads    checkkit.ThreadStates // only if healthz failed
	Body       string
	HealthzErr error
	Latency    time.Duration
	Impostor   bool // proven: another process than kubelet holds the healthz port
	// Intercepted is why requests are proven not to reach kubelet; empty if not, or not verified in this run
	Intercepted string
}

func observeKubelet(ctx context.Context, h *host.Host, s Settings, owners *portOwner) (observation, error) {
	seen := observation{URL: h.Paths.KubeletHealthz, ProcessErr: hosterr.ErrNotConfigured}
	if h.Kubelet.Healthz == nil {
		return seen, finding.NotApplicable("no kubelet is configured on this host")
	}
	if h.Kubelet.Process != nil {
		seen.Process, seen.ProcessErr = h.Kubelet.Process()
	}
	call, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	began := time.Now()
	seen.Body, seen.HealthzErr = h.Kubelet.Healthz(call)
	seen.Latency = time.Since(began)
	if err := ctx.Err(); err != nil {
		// the run's own deadline: no evidence about kubelet
		return seen, fmt.Errorf("ask kubelet's healthz: %w", err)
	}
	// there is no sign of a running kubelet
	if errors.Is(seen.ProcessErr, fs.ErrNotExist) && seen.HealthzErr != nil && !checkkit.KubeletInstalled(h) {
		return seen, finding.NotApplicable("no kubelet runs on this host and none has left its files in %s",
			h.Paths.KubeletRoot)
	}
	if seen.ProcessErr != nil {
		return seen, nil
	}
	seen.Age = seen.Process.Age(h.Clock().SinceBoot)
	if seen.HealthzErr != nil {
		seen.Threads = checkkit.ReadThreadStates(h, seen.Process.PID)
	}
	seen.Impostor = owners.impostor(h, seen.Process, seen.URL, answered(seen.HealthzErr))
	if !seen.Impostor && (seen.HealthzErr != nil || seen.Latency >= s.SlowBefore || owners.due(h.Clock())) {
		owners.verified = h.Clock()
		call, cancel := context.WithTimeout(ctx, interceptTimeout)
		defer cancel()
		seen.Intercepted = socket.Intercepted(call, h, seen.Process.PID, addressOf(seen.URL))
	}
	return seen, nil
}

// answered reports whether there was an HTTP answer, of any status. The transport's failures are *url.Error.
func answered(err error) bool {
	if errors.Is(err, hosterr.ErrDoubt) || errors.Is(err, hosterr.ErrNotConfigured) {
		return false // it was not asked
	}
	_, transport := errors.AsType[*url.Error](err)
	return err == nil || !transport && !errors.Is(err, context.DeadlineExceeded) &&
		!errors.Is(err, syscall.ECONNREFUSED)
}

// evaluateKubelet returns the faults of kubelet.
func evaluateKubelet(seen observation, s Settings) ([]finding.Finding, error) {
	gone := errors.Is(seen.ProcessErr, fs.ErrNotExist) || seen.Threads.Main == 'Z'
	refused := errors.Is(seen.HealthzErr, syscall.ECONNREFUSED)
	ms := seen.Latency.Round(time.Millisecond)
	switch {
	case seen.Impostor:
		found, err := seen.fatal("KubeletPortTaken", "%s is answered by a process that is not kubelet (pid %d): `ss -ltnp` "+
			"names it; kubelet takes its port within seconds after it is free. If both are kubelets of this node, "+
			"set paths.kubeletRoot", seen.URL, seen.Process.PID)
		found[0].Severity = finding.Warning // kubelet goes on without it, and a pod on the node's network can take it
		return found, err
	case seen.Intercepted != "" && !gone && seen.Threads.Main != 'T' && seen.Threads.Main != 't':
		return nil, fmt.Errorf("kubelet's healthz: %s", seen.Intercepted)
	case seen.HealthzErr == nil && seen.Latency < s.SlowBefore:
		return nil, nil
	case seen.HealthzErr == nil:
		found, err := seen.fatal("KubeletSlow",
			"kubelet took %s to answer healthz: check for disk or CPU pressure on the node", ms)
		if seen.Latency < s.SlowAfter {
			found[0].BelowRaise = true
		}
		found[0].Severity = finding.Warning
		return found, err
	case answered(seen.HealthzErr):
		return seen.fatal("KubeletHealthzFailed", "kubelet reports that it is not healthy: %s: read its log",
			checkkit.Sanitize(healthzAnswer(seen), 500))
	case gone:
		return seen.fatal("KubeletNotRunning", "no kubelet process runs: start it with `systemctl start kubelet` and "+
			"read why it ended in `journalctl -u kubelet`")
	case seen.Threads.Main == 'T' || seen.Threads.Main == 't':
		return seen.fatal("KubeletStopped", "kubelet (pid %d) is stopped by a signal or a debugger: `kill -CONT "+
			"%[1]d` resumes it", seen.Process.PID)
	case errors.Is(seen.HealthzErr, hosterr.ErrDoubt):
		return nil, fmt.Errorf("kubelet's healthz: %w", seen.HealthzErr)
	case errors.Is(seen.HealthzErr, hosterr.ErrNotConfigured) && seen.ProcessErr == nil:
		return nil, nil // it serves no healthz; its process lives
	case seen.ProcessErr != nil && !refused && !checkkit.IsTimeout(seen.HealthzErr):
		return nil, fmt.Errorf("kubelet: process: %w; healthz: %w", seen.ProcessErr, seen.HealthzErr)
	case refused && seen.ProcessErr != nil:
		return seen.fatal("KubeletNotListening", "no process listens on %s: kubelet is not running or still starting",
			seen.URL)
	case refused:
		return seen.fatal("KubeletNotListening", "kubelet (pid %d, up %s) runs, but no process listens on %s: it is "+
			"still starting, fails again and again (see its log), or healthzPort differs", seen.Process.PID,
			seen.Age.Round(time.Second), seen.URL)
	case seen.Threads.Blocked > 0:
		return seen.fatal("KubeletHung", "kubelet (pid %d) does not answer healthz; %d of its threads hang in the "+
			"kernel (state D): check for an unresponsive mount or disk", seen.Process.PID, seen.Threads.Blocked)
	default:
		return seen.fatal("KubeletNotAnswering", "kubelet does not answer healthz within %s (%v): read its log; "+
			"`kill -QUIT` makes it write all its goroutines there and exit", ms, seen.HealthzErr)
	}
}

// healthzAnswer returns kubelet's answer.
func healthzAnswer(seen observation) string {
	if seen.Body == "" {
		return seen.HealthzErr.Error()
	}
	return fmt.Sprintf("%v: %s", seen.HealthzErr, seen.Body)
}

func (seen observation) fatal(reason, format string, args ...any) ([]finding.Finding, error) {
	facts := map[string]string{"url": seen.URL, "latencyMilliseconds": fmt.Sprint(seen.Latency.Milliseconds())}
	if seen.ProcessErr == nil {
		facts["pid"] = strconv.Itoa(seen.Process.PID)
		facts["uptimeSeconds"] = fmt.Sprint(int64(seen.Age.Seconds()))
	}
	if seen.Threads.Main != 0 {
		facts["state"] = string(seen.Threads.Main)
	}
	return []finding.Finding{{
		Subject: checkkit.KubeletSubject(), Severity: finding.Fatal,
		Reason: reason, Message: fmt.Sprintf(format, args...), Facts: facts,
	}}, nil
}
