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

const impostorsID = "daemon-impostors"

// DaemonImpostors reads, of the processes that are called like a daemon of the node (kubelet, containerd, k3s, k0s,
// kubelite),
//
//	/proc/PID/stat              the name that the kernel keeps, which anybody can choose
//	/proc/PID/status            Uid: real, effective, saved and of the filesystem; uid_map and ns/user: as the machine counts them
//	/proc/PID/cgroup            /kubepods/… a pod's, /user.slice/… a session's
//	/proc/PID/exe               the program
//	/proc/PID/ns/{mnt,pid}      where its paths begin
//
// https://man7.org/linux/man-pages/man5/proc_pid_status.5.html
//
// What the agent learns of the node's layout it learns from these daemons: which credentials, which folders, which
// programs. It believes those that are root's own alone (internal/host, ErrImpostor). Any other misleads people, ps
// and scripts at least, and looks like an attempt to mislead the agent.
//
// Known false alarms, and what is done: nodes in containers (kind, Docker in Docker) live in a PID namespace of a
// container, and a rootless containerd in a user namespace: neither is told of. A kubelet that root has started by
// hand, or in a mount namespace of its own (OpenShift), is told of until paths.kubeletElsewhere is set: it is not
// watched before that.
func DaemonImpostors() detect.Check {
	return detect.Check{
		ID: impostorsID, Domain: "kubelet",
		Summary: "a process is called like kubelet or the runtime, and is not root's own: the agent does not believe it",
		Advice: "`ls -l /proc/PID/exe` and `cat /proc/PID/status /proc/PID/cgroup` say what it is and whose. Nobody " +
			"but root has a reason to call a program so: find out who started it (`loginctl`, the pod of its cgroup) " +
			"and end it. Where it is the node's kubelet after all, set `paths.kubeletElsewhere: true`.",
		Doc: detect.Doc{
			Reads: []string{"/proc/PID/stat, shared with all checks",
				"/proc/PID/{status,uid_map,cgroup,exe,ns/user,ns/mnt} of processes with such a name"},
			Why: "Anybody can start a process called kubelet. Who believes it takes credentials from its kubeconfig, " +
				"shows its server a token and runs programs from its folders: as root.",
			Faults: []detect.Fault{{Reason: "DaemonImpostor", Severity: finding.Warning,
				When: "a process has the name of a daemon of the node, and its user, namespaces, cgroup or program " +
					"are not those of root's own"}},
			FalseAlarms: "Nodes in containers and rootless runtimes have the name by right and are left out. A " +
				"kubelet in a mount namespace of its own or started by hand is told of until " +
				"`paths.kubeletElsewhere` is set.",
		},
		Every: time.Minute,
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			impostors, err := discover.Impostors(ctx, h)
			return impostorFindings(impostors), err
		},
	}
}

// maxImpostors bounds the findings: a user may start as many processes as he likes, and more than one user.
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
			Check: impostorsID, Subject: finding.Subject{Kind: "process", Name: name}, Severity: finding.Warning,
			Reason: "DaemonImpostor",
			Message: fmt.Sprintf("process %d of user %d is called %s (program %s) and is not believed: %s", i.PID,
				i.User, comm, program, checkkit.Sanitize(i.Why, 512)),
			Facts: map[string]string{"pid": strconv.Itoa(i.PID), "user": strconv.FormatUint(uint64(i.User), 10),
				"program": program},
		})
	}
	for i := range findings {
		if n := more[findings[i].Subject.Name] - 1; n > 0 {
			findings[i].Message += fmt.Sprintf("; %d more like it", n)
		}
	}
	return findings
}
