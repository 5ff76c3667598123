// Package harness runs the real agent on the lab, as a process of the host or as the DaemonSet, with exactly the
// permissions that it ships with: its ServiceAccount, bound by packaging/kubernetes.
package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/test/lab"
)

// Agent is one installation of the agent on the lab: a folder with its binary, configuration, state and log.
type Agent struct {
	Lab    *lab.Lab
	Dir    string
	Binary string
	Config string

	how installation // nil: a process of the host
}

// installation is one way to run the agent on a node, with the configuration that Configure has written.
type installation interface {
	start(ctx context.Context, a *Agent, env []string) error // and waits until it answers
	stop(a *Agent) error                                     // gracefully
	kill(a *Agent) error                                     // like a crash
}

func (a *Agent) installed() installation {
	if a.how == nil {
		a.how = &process{}
	}
	return a.how
}

// Overrides are settings that override those of Install, in the form of the configuration file.
type Overrides map[string]any

// Repo returns the checkout that the working directory is in.
func Repo() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if data, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil &&
			bytes.HasPrefix(data, []byte("module github.com/nodeagent/nodeagent\n")) {
			return dir, nil
		}
	}
	return "", errors.New("the working directory is not inside a checkout of nodeagent")
}

// Build builds the agent into dir, like the Makefile, and returns the path of the binary. Tags are further Go build
// tags. A binary that dir already has is linked again only after a change.
func Build(ctx context.Context, dir string, tags ...string) (string, error) {
	repo, err := Repo()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "nodeagent")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", strings.Join(append(tags, "grpcnotrace"), ","),
		"-ldflags", "-s -w", "-o", binary, "./cmd/nodeagent")
	cmd.Dir, cmd.Env = repo, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build nodeagent: %w\n%s", err, out)
	}
	return binary, nil
}

// Install gives the agent a ServiceAccount and a configuration in dir. The thresholds of inspections are short: seconds
// instead of the ten minutes of a real node.
func Install(ctx context.Context, l *lab.Lab, dir, binary string, overrides Overrides) (*Agent, error) {
	repo, err := Repo()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// This agent has one identity, its ServiceAccount: it makes no reads with the node's identity.
	for _, rights := range []string{"rbac.yaml", "rights.yaml"} {
		if out, err := l.Kubectl(ctx, "apply", "-f", filepath.Join(repo, "packaging/kubernetes", rights)); err != nil {
			return nil, fmt.Errorf("apply the agent's permissions: %w: %s", err, out)
		}
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := l.ServiceAccountKubeconfig(ctx, "nodeagent", "nodeagent", kubeconfig); err != nil {
		return nil, err
	}
	a := &Agent{Lab: l, Dir: dir, Binary: binary, Config: filepath.Join(dir, "config.yaml")}
	return a, a.Configure(overrides)
}

// Configure replaces the configuration file.
func (a *Agent) Configure(overrides Overrides) error {
	settings := map[string]any{
		"stateDir": filepath.Join(a.Dir, "state"),
		"socket":   filepath.Join(a.Dir, "agent.sock"),
		"paths": map[string]any{
			"kubeconfig":     filepath.Join(a.Dir, "kubeconfig"),
			"cniNetworksDir": a.Lab.Paths.CNINetworksDir,
		},
		"inspect": map[string]any{
			"every": "2s", "passes": 3, "grace": "6s", "listSpacing": "2s", "runningSpacing": "4s",
			"kubeletUptime": "5s", "runtimeUptime": "2s",
		},
		"remediate": map[string]any{
			"killSwitch": filepath.Join(a.Dir, "stop"), "lock": filepath.Join(a.Dir, "release.lock"),
			"podsPerHour": 1000, "stopAfter": 1000, "ownerGrace": "5s", "containerGrace": "2s", "processGrace": "2s",
			"retryAfter": "1s", // after an incomplete release; the default is at least a minute
		},
		// The disks that tests make fail are loop devices that no pod uses: warnings, unless an administrator names them.
		"checks": map[string]any{"filesystem-readonly": map[string]any{"needed": []string{a.Dir}}},
		"report": map[string]any{
			"conditions": map[string]any{"spread": "1s"},
			"metrics":    map[string]any{"listen": "127.0.0.1:10681"},
		},
	}
	if set, ok := a.installed().(*daemonSet); ok {
		merge(settings, set.settings(a))
	}
	merge(settings, overrides)
	text, err := yaml.Marshal(settings)
	if err != nil {
		return err
	}
	return os.WriteFile(a.Config, text, 0o600)
}

func merge(into map[string]any, from map[string]any) {
	for key, value := range from {
		a, aok := into[key].(map[string]any)
		b, bok := value.(map[string]any)
		if o, ok := value.(Overrides); ok {
			b, bok = o, true
		}
		if aok && bok {
			merge(a, b)
		} else {
			into[key] = value
		}
	}
}

// Start starts the daemon and waits until it answers.
func (a *Agent) Start(ctx context.Context, env ...string) error {
	return a.installed().start(ctx, a, env)
}

// Stop ends the daemon gracefully.
func (a *Agent) Stop() error { return a.installed().stop(a) }

// Kill ends the daemon like a crash.
func (a *Agent) Kill() error { return a.installed().kill(a) }

// Answer is the output of one command of the agent.
type Answer struct {
	Code           int
	Stdout, Stderr string
	CPU, Wall      time.Duration // of the command and its children
	MaxRSS         int           // of the command alone, in KiB
}

// CLI runs one command of the agent with its configuration.
func (a *Agent) CLI(ctx context.Context, args ...string) (Answer, error) {
	cmd := exec.CommandContext(ctx, a.Binary, append([]string{"--config", a.Config}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	began := time.Now()
	err := cmd.Run()
	answer := Answer{Stdout: stdout.String(), Stderr: stderr.String(), Wall: time.Since(began)}
	if cmd.ProcessState != nil {
		answer.Code, answer.CPU = cmd.ProcessState.ExitCode(), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
		if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
			answer.MaxRSS = int(usage.Maxrss)
		}
	}
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil // the code is part of the answer
	}
	return answer, err
}

// JSON runs one command with -o json and decodes its output.
func (a *Agent) JSON(ctx context.Context, into any, args ...string) (Answer, error) {
	answer, err := a.CLI(ctx, append(args, "-o", "json")...)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal([]byte(answer.Stdout), into); err != nil {
		return answer, fmt.Errorf("nodeagent %s: %w\nstdout: %s\nstderr: %s", strings.Join(args, " "), err,
			answer.Stdout, answer.Stderr)
	}
	return answer, nil
}

// Status returns the daemon's status.
func (a *Agent) Status(ctx context.Context) (Status, error) {
	var s Status
	answer, err := a.JSON(ctx, &s, "status")
	if err == nil && s.PID == 0 { // the command ran the checks itself
		err = fmt.Errorf("no agent answers: %s", answer.Stdout)
	}
	return s, err
}

// Status is the part of the output of "nodeagent status -o json" that tests read.
type Status struct {
	PID    int `json:"pid"`
	Checks []struct {
		Check, Status, Error, Why string
	} `json:"checks"`
	Findings []Finding `json:"findings"`
	Release  struct {
		Mode string   `json:"mode"`
		Last []string `json:"last"`
	} `json:"release"`
	Trouble []string `json:"trouble"`
}

// Finding is one finding of a status.
type Finding struct {
	Check, Reason, Message, Severity, ID string
	Subject                              struct{ Kind, Name, UID string } `json:"subject"`
	Facts                                map[string]string                `json:"facts"`
}

// Patience bounds each wait for something real. A test fails by the state that it finds, and by time only if that state
// never comes.
const Patience = lab.Patience

// WaitFor tries until it succeeds, for as long as Patience; the error names what was waited for and how it failed last. It
// tries often at first and twice a second later: a try often starts a kubectl, which costs more than what it waits for.
func WaitFor(ctx context.Context, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	const first, last = 50 * time.Millisecond, 500 * time.Millisecond
	for pause := first; ; pause = min(pause*5/4, last) {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %s for %s: %w", Patience, what, err)
		case <-time.After(pause):
		}
	}
}

// Condition is one condition of the lab's node as the apiserver shows it.
type Condition struct {
	Type, Status, Reason, Message         string
	LastTransitionTime, LastHeartbeatTime time.Time
}

// Condition reads one condition of the node; a zero one if it has none.
func (a *Agent) Condition(ctx context.Context, name string) (Condition, error) {
	out, err := a.Lab.Kubectl(ctx, "get", "node", a.Lab.NodeName, "-o", "json")
	if err != nil {
		return Condition{}, err
	}
	var node struct {
		Status struct{ Conditions []Condition }
	}
	if err := json.Unmarshal(out, &node); err != nil {
		return Condition{}, err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == name {
			return c, nil
		}
	}
	return Condition{}, nil
}

// Event is one event on the lab's node that the agent wrote.
type Event struct {
	Reason, Message string
	Count           int
}

// Events reads the agent's events on the node.
func (a *Agent) Events(ctx context.Context) ([]Event, error) {
	out, err := a.Lab.Kubectl(ctx, "get", "events", "--all-namespaces", "--field-selector",
		"involvedObject.kind=Node,source=nodeagent", "-o", "json")
	if err != nil {
		return nil, err
	}
	var list struct{ Items []Event }
	return list.Items, json.Unmarshal(out, &list)
}

// Inspected is the part of the output of "nodeagent inspect -o json" that tests read.
type Inspected struct {
	Objects []struct {
		Kind, ID, Verdict, Why string
		Pod                    struct{ UID, Namespace, Name string }
		Witnesses              map[string]string
	} `json:"objects"`
	Gates []struct {
		Name string
		Open bool
		Why  string
	} `json:"gates"`
	Errors []struct{ What, Error string } `json:"errors"`
}

// Suspicious counts the objects that are neither live nor foreign.
func (i Inspected) Suspicious() int {
	n := 0
	for _, o := range i.Objects {
		if o.Verdict != "live" && o.Verdict != "foreign" {
			n++
		}
	}
	return n
}

// Gate returns the explanation of one gate.
func (i Inspected) Gate(name string) string {
	for _, g := range i.Gates {
		if g.Name == name {
			return g.Why
		}
	}
	return "no such gate"
}
