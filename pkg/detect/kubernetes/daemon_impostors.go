package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// DaemonImpostors reads these files of the processes that have the name of a daemon of the node (kubelet, containerd, a
// distribution's program):
//
//	/proc/PID/stat              the name that the kernel keeps, which any process can choose
//	/proc/PID/status            Uid: real, effective, saved and of the filesystem; uid_map and ns/user: as the machine counts them
//	/proc/PID/cgroup            /kubepods/… a pod's, /user.slice/… a session's
//	/proc/PID/exe               the program
//	/proc/PID/ns/{mnt,pid}      where its paths begin
//
// https://man7.org/linux/man-pages/man5/proc_pid_status.5.html
//
// The agent takes the node's layout from these daemons: credentials, folders, programs. It trusts only those that
// belong to root (internal/host, ErrImpostor). Any other misleads at least people, ps and scripts, and may be an
// attempt to mislead the agent.
func DaemonImpostors() detect.Check {
	return detect.Check{
		ID: "daemon-impostors", Domain: "kubelet",
		Summary: "a process has the name of kubelet or the runtime but is not root's: the agent does not trust it",
		Advice: "Find the program and its owner with `ls -l /proc/PID/exe` and `cat /proc/PID/status " +
			"/proc/PID/cgroup`. No user and no pod has a reason to run a program of this name: find out who started " +
			"it (`loginctl`, the pod of its cgroup).",
		Doc: detect.Doc{
			Reads: []string{"/proc/PID/stat, shared with all checks",
				"/proc/PID/{status,uid_map,cgroup,exe,ns/user,ns/mnt} of processes with such a name"},
			Why: "Any user can start a process called kubelet. A program that trusts it takes credentials from its " +
				"kubeconfig, sends its server a token and runs programs from its folders, as root.",
			Faults: []detect.Fault{{Reason: "DaemonImpostor", Severity: finding.Warning,
				When: "a process has the name of a daemon of the node, and its user, namespaces, cgroup or program " +
					"are not root's; information where it may be the node's own kubelet"}},
			FalseAlarms: "Nodes in containers, and rootless runtimes, are ignored. A kubelet in its own mount " +
				"namespace, in a container with the host's PIDs, or started by hand is reported as information, and " +
				"not monitored, until `paths.kubeletElsewhere` is set.",
		},
		Every: time.Minute,
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			impostors, err := discover.Impostors(ctx, h)
			return impostorFindings(impostors), err
		},
	}
}

// maxImpostors bounds the findings: any number of users may start any number of processes.
const maxImpostors = 20

// impostorFindings makes one finding for each user and name, however many processes there are.
func impostorFindings(impostors []discover.Impostor) []finding.Finding {
	more := map[string]int{}
	var findings []finding.Finding
	for _, i := range impostors {
		comm := checkkit.Sanitize(i.Comm, 64)
		name := fmt.Sprintf("%s of user %d", checkkit.Sanitize(strings.TrimRight(i.Comm, "-_.v0123456789"), 64), i.User)
		if more[name]++; more[name] > 1 || len(findings) == maxImpostors {
			continue
		}
		program := checkkit.Sanitize(cmp.Or(i.Program, "unknown"), 256)
		findings = append(findings, finding.Finding{
			Subject: finding.Subject{Kind: "process", Name: name}, Severity: finding.Warning, Reason: "DaemonImpostor",
			Message: fmt.Sprintf("process %d of user %d is called %s (program %s) and is not trusted: %s", i.PID,
				i.User, comm, program, checkkit.Sanitize(i.Why, 512)),
			Facts: map[string]string{"pid": strconv.Itoa(i.PID), "user": fmt.Sprint(i.User), "program": program},
		})
		if f := &findings[len(findings)-1]; i.Perhaps {
			f.Severity = finding.Info
			f.Message += ". It may be this node's own kubelet"
			f.Facts["advice"] = "If it is this node's kubelet, set `paths.kubeletElsewhere: true` and restart the agent: " +
				"until then the agent does not monitor it. `nodeagent config show` prints what it found."
		}
	}
	for i := range findings {
		if n := more[findings[i].Subject.Name] - 1; n > 0 {
			findings[i].Message += fmt.Sprintf("; %d more like it", n)
		}
	}
	return findings
}
