package repair

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func restartUnit() Action {
	return Action{
		Name:    "restart-unit",
		Summary: "restart kubelet or the container runtime",
		Answers: []Answer{
			{"kubelet-health", []string{"KubeletNotRunning", "KubeletNotAnswering", "KubeletNotListening"}},
			{"runtime-health", []string{"RuntimeSocketMissing", "RuntimeNotRunning", "RuntimeNotAnswering"}},
		},
		Disrupts: true, Once: true, PerDay: func(s Settings) int { return s.RestartsPerDay },
		Needs: []string{
			"the unit runs or has failed: a stopped unit stays stopped",
			"no start is in progress: no job is queued, it is not activating or waiting for its restart, and both its " +
				"state and its main process are older than `unitAge`",
			"its KillMode is process, so that only its main process is killed",
			"its main process is no shim and serves no FUSE filesystem",
			"systemd permits its manual start and stop (RefuseManualStart=, RefuseManualStop=)",
			"it runs no program when it is stopped (ExecStop=, ExecStopPost=)",
			"no active unit would be stopped or restarted with it (Requires=, Requisite=, BindsTo=, PartOf=, " +
				"PropagatesStopTo=)",
			"systemd would not remove a directory of it (RuntimeDirectory= without RuntimeDirectoryPreserve=)",
			"neither its end nor a failed start triggers another action (FailureAction=, SuccessAction=, StartLimitAction=, " +
				"JobTimeoutAction=, OnFailure=, OnSuccess=)",
		},
		Does: []string{"give systemd `minAge` to restart it first", "RestartUnit over systemd's D-Bus, once for each fault",
			"then ask for help (RepairDidNotHelp)"},
		Never: []string{"restarts a unit whose restart would end a container", "replaces a job that is queued",
			"restarts a daemon that hangs in the kernel, or one stopped by hand: a restart does not help"},
		Examine: examineUnit,
	}
}

func examineUnit(ctx context.Context, t Tools, f finding.Finding) (Job, error) {
	name, why := unitOf(t, f.Check)
	if why != "" {
		return Job{}, refuse("%s", why)
	}
	if t.Host.Systemd.Service == nil {
		return Job{}, fmt.Errorf("systemd: %w", hosterr.ErrNotConfigured)
	}
	service, err := t.Host.Systemd.Service(ctx, name)
	if err != nil {
		return Job{}, err
	}
	if why := mayRestart(service, t.Settings.UnitAge); why != "" {
		return Job{}, refuse("%s", why)
	}
	inside, err := examineInside(t, service)
	if err != nil {
		return Job{}, err
	}
	if why := inside.refusal(service); why != "" {
		return Job{}, refuse("%s", why)
	}
	run := mutate.ServiceRun{Name: service.Name, MainPID: service.MainPID, Invocation: service.Invocation}
	also := ""
	if len(service.StartRuns) > 0 {
		also = "; it also runs " + strings.Join(service.StartRuns, ", ")
	}
	return Job{
		Does: fmt.Sprintf("restart %s (%s; %d other processes in its cgroup stay%s)", name, service.Active, inside.others,
			also),
		Identity: map[string]string{"unit": name, "mainPID": strconv.Itoa(service.MainPID),
			"invocation": service.Invocation},
		Do: func(ctx context.Context) (string, error) { return "", t.Mutator.RestartService(ctx, run) },
	}, nil
}

// unitOf returns the service of kubelet or the runtime, or why it is unknown or must not be restarted. A unit that runs
// more than that is restarted only if the operator names it.
func unitOf(t Tools, check string) (name, why string) {
	node, key := t.Host.Node, "units.kubelet"
	name, unit := t.Settings.Units.Kubelet, node.KubeletUnit()
	if check == "runtime-health" {
		name, key = t.Settings.Units.Runtime, "units.runtime"
		node.Socket = t.Host.Paths.CRISocket
		unit = node.RuntimeUnit()
		if base := path.Base(node.Socket); base != "containerd.sock" && base != "crio.sock" {
			unit = ""
		}
	}
	switch {
	case name != "":
		return name, ""
	case unit == "":
		return "", "cannot tell which unit it is: see " + key
	case node.RunsMore() && (check != "runtime-health" || unit == node.KubeletUnit()):
		return "", fmt.Sprintf("%s.service may run more than that, such as the control plane: %s must name it", unit, key)
	}
	return unit + ".service", ""
}

// mayRestart returns why a service must not be restarted, judged by systemd's state of it.
func mayRestart(s systemd.Service, unitAge time.Duration) string {
	switch {
	case s.Load != "loaded":
		return fmt.Sprintf("%s is %s", s.Name, s.Load)
	case s.Job:
		return "systemd has a job for " + s.Name
	case s.Active != "active" && s.Active != "failed" || strings.HasPrefix(s.Sub, "auto-restart"):
		return fmt.Sprintf("%s is %s (%s)", s.Name, s.Active, s.Sub)
	case s.Age < unitAge:
		return fmt.Sprintf("%s was started or has changed its state %s ago, less than %s", s.Name,
			s.Age.Round(time.Second), unitAge)
	case !s.ManualAllowed:
		return "systemd refuses to start or stop " + s.Name + " by hand (RefuseManualStart=, RefuseManualStop=)"
	case s.StopRuns:
		return s.Name + " runs a program when it is stopped, which could end anything"
	case len(s.Dependents) > 0:
		return fmt.Sprintf("systemd would stop or restart %s with %s", strings.Join(s.Dependents, ", "), s.Name)
	case len(s.Changes) > 0:
		return fmt.Sprintf("a restart of %s may change more than its processes: %s", s.Name, strings.Join(s.Changes, "; "))
	}
	return ""
}

// insideUnit counts the processes in the cgroup of a service.
type insideUnit struct {
	shims, servers []int // of containers; of FUSE filesystems
	others         int   // processes besides the main one, those included
}

func examineInside(t Tools, s systemd.Service) (insideUnit, error) {
	var in insideUnit
	for _, pid := range s.Processes {
		stat, err := t.Host.ProcStat(pid)
		if proc.UnlessGone(err) != nil {
			return in, fmt.Errorf("process %d of %s: %w", pid, s.Name, err)
		}
		if err != nil {
			continue // it has ended
		}
		if pid != s.MainPID {
			in.others++
		}
		serves, err := holders.ServesFUSE(t.Host, pid)
		if err != nil {
			return in, fmt.Errorf("open files of process %d of %s: %w", pid, s.Name, err)
		}
		if serves {
			in.servers = append(in.servers, pid)
		}
		if cri.IsShim(stat.Comm) {
			in.shims = append(in.shims, pid)
		}
	}
	return in, nil
}

// refusal returns why a restart would end a process that must live.
func (in insideUnit) refusal(s systemd.Service) string {
	switch {
	case s.KillMode == "none":
		return s.Name + " has KillMode=none: systemd would start it beside the old one"
	case s.KillMode != "process":
		return fmt.Sprintf("restart would end %d containers: %s has KillMode=%s, and besides its main process %d more "+
			"in its cgroup, of which %d serve FUSE filesystems", len(in.shims), s.Name, s.KillMode, in.others,
			len(in.servers))
	case slices.Contains(in.shims, s.MainPID):
		return fmt.Sprintf("restart would end 1 containers: the main process %d of %s is a shim", s.MainPID, s.Name)
	case slices.Contains(in.servers, s.MainPID):
		return fmt.Sprintf("the main process %d of %s serves a FUSE filesystem", s.MainPID, s.Name)
	}
	return ""
}
