package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// node-registration gets this machine's Node from the apiserver and compares it with
//
//	/etc/machine-id (or /var/lib/dbus/machine-id)       status.nodeInfo.machineID
//	/proc/sys/kernel/random/boot_id                     status.nodeInfo.bootID
//	status.conditions                                   Ready and the pressures, as kubelet and the control plane set them
//
// https://kubernetes.io/docs/reference/node/node-status/,
// https://www.freedesktop.org/software/systemd/man/machine-id.html.
//
// The Node is read about once an hour, jittered, which is 3 small requests a second for 10,000 nodes; every ten minutes
// during a finding, and after a restart of kubelet. Kubelet writes the Node's identity when it starts, and has five
// minutes for that. The control plane watches the renewal of the lease, and sets Ready to Unknown without it.

const (
	registrationEvery = time.Hour
	registrationGrace = 5 * time.Minute // kubelet's time to write its Node after a start
)

// NodeRegistration finds a Node that does not exist, belongs to another machine, or is not healthy.
func NodeRegistration() detect.Check {
	m := &registrationState{}
	return detect.Check{
		ID:      "node-registration",
		Domain:  "kubernetes",
		Summary: "the cluster has no Node for this machine, or its Node is another machine or not healthy",
		Advice: "Not registered: restart kubelet, which creates its Node only when it starts; if it is refused, its " +
			"log has the reason. Another machine: two machines have the same host name (or a cloned disk, see " +
			"/etc/machine-id): rename one and join it again. Not heard from: check the connection to the apiserver " +
			"(`nodeagent explain kubelet-sync`).",
		Doc: detect.Doc{
			Reads: []string{"GET nodes/NAME of the apiserver (hourly)", "/etc/machine-id",
				"/proc/sys/kernel/random/boot_id"},
			Why: "A machine without a Node gets no pods; two machines with one Node overwrite each other's status " +
				"and kill each other's pods.",
			Faults: []detect.Fault{
				{Reason: "NodeNotRegistered", Severity: finding.Warning,
					When: "the apiserver has no Node of this name, although kubelet has run for 5 minutes"},
				{Reason: "NodeIsAnotherMachine", Severity: finding.Warning,
					When: "the Node's machineID is not that of this machine: two machines share the name"},
				{Reason: "NodeStatusStale", Severity: finding.Warning, When: "the Node's bootID is not of this boot, " +
					"although kubelet has run for 5 minutes: its status is not written, or is written by another " +
					"machine with a copy of the disk"},
				{Reason: "NodeNotHeard", Severity: finding.Warning, When: "Ready is Unknown: the control plane has " +
					"had no heartbeat from kubelet for 40 s or more"},
				{Reason: "NodeNotReady", Severity: finding.Warning, When: "Ready is False: kubelet itself reports why"},
				{Reason: "NodeUnderPressure", Severity: finding.Warning,
					When: "DiskPressure, MemoryPressure, PIDPressure or NetworkUnavailable is True: no new pods are " +
						"scheduled here"},
			},
			FalseAlarms: "A node that is being removed from the cluster is reported as not registered while it still " +
				"runs. The Node's state may be an hour old until there is a finding; then it is read every ten " +
				"minutes.",
		},
		Every:    10 * time.Minute,
		Deadline: 20 * time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Runs: 2}, BlindAfter: 2 * time.Hour},
		Run:      m.observe,
	}
}

// registrationState keeps the last answer.
type registrationState struct {
	asked   finding.Timestamp
	wait    time.Duration // until the next read; 0: at the next run
	kubelet host.Process
}

func (m *registrationState) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.NodeName == "" || h.Cluster.Node == nil {
		return nil, finding.NotApplicable("this machine is no node of a cluster")
	}
	now := h.Clock()
	process, age, err := kubeletAge(h, now)
	if err != nil {
		return nil, err
	}
	same := process.PID == m.kubelet.PID && process.StartTime == m.kubelet.StartTime
	if m.wait > 0 && same && m.asked.Boot == now.Boot && now.Since(m.asked) < m.wait {
		return nil, nil // it was healthy at the last read
	}
	m.wait = 0
	node, err := h.Cluster.SeenNode(ctx)
	settled := age >= registrationGrace
	switch {
	case apierrors.IsNotFound(err) && settled:
		return []finding.Finding{registrationFinding(h, "NodeNotRegistered",
			"the cluster has no Node %s, although %s has run for %s",
			h.NodeName, cmp.Or(process.Comm, "this machine"), age.Round(time.Minute))}, nil
	case apierrors.IsNotFound(err):
		return nil, nil // it is about to be
	case err != nil:
		return nil, err
	}
	found, err := evaluateNode(h, node, settled)
	if len(found) == 0 && err == nil && settled {
		m.asked, m.kubelet, m.wait = now, process, registrationEvery+rand.N(registrationEvery/4)
	}
	return found, err
}

// kubeletAge returns for how long kubelet has run. If it is part of another program, this is unknown, and kubeletAge
// returns the machine's uptime. A kubelet that does not run has not written anything lately: kubelet-health reports
// that.
func kubeletAge(h *host.Host, now finding.Timestamp) (host.Process, time.Duration, error) {
	if h.Kubelet.Process == nil {
		return host.Process{}, now.SinceBoot, nil
	}
	process, err := h.Kubelet.Process()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return host.Process{}, now.SinceBoot, nil
	case err != nil:
		return host.Process{}, 0, fmt.Errorf("kubelet: %w", err)
	}
	return process, process.Age(now.SinceBoot), nil
}

// evaluateNode compares the Node with this machine.
func evaluateNode(h *host.Host, node *corev1.Node, settled bool) ([]finding.Finding, error) {
	machine, boot, err := machineIdentity(h.Files)
	if err != nil {
		return nil, fmt.Errorf("identity of this machine: %w", err)
	}
	info := node.Status.NodeInfo
	var found []finding.Finding
	switch {
	case machine != "" && info.MachineID != "" && !strings.EqualFold(info.MachineID, machine):
		return []finding.Finding{registrationFinding(h, "NodeIsAnotherMachine",
			"Node %s is the machine with machineID %s (%s), and this one has %s: two machines share the name",
			h.NodeName, checkkit.Sanitize(info.MachineID, 64), addressesOf(node), machine)}, nil
	case settled && info.BootID != "" && info.BootID != boot:
		found = append(found, registrationFinding(h, "NodeStatusStale",
			"Node %s shows boot %s, and this machine runs boot %s: kubelet does not write its status, or another "+
				"machine with a copy of this disk does (%s)", h.NodeName, checkkit.Sanitize(info.BootID, 64), boot,
			addressesOf(node)))
	}
	return append(found, evaluateConditions(node)...), nil
}

func evaluateConditions(node *corev1.Node) []finding.Finding {
	var found []finding.Finding
	for _, c := range node.Status.Conditions {
		text := fmt.Sprintf("%s: %s", checkkit.Sanitize(c.Reason, 100),
			checkkit.Sanitize(c.Message, checkkit.MaxReported))
		f := finding.Finding{Subject: finding.Subject{Kind: "node-condition",
			Name: string(c.Type)}, Severity: finding.Warning,
			Facts: map[string]string{"status": string(c.Status), "reason": checkkit.Sanitize(c.Reason, 100)}}
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown:
			f.Reason, f.Message = "NodeNotHeard",
				fmt.Sprintf("the control plane has had no heartbeat from kubelet since %s (%s)",
					c.LastHeartbeatTime.UTC().Format(time.RFC3339), text)
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionFalse:
			f.Reason, f.Message = "NodeNotReady", "kubelet reports that the node is not ready: "+text
		case c.Status == corev1.ConditionTrue && (c.Type == corev1.NodeDiskPressure ||
			c.Type == corev1.NodeMemoryPressure || c.Type == corev1.NodePIDPressure ||
			c.Type == corev1.NodeNetworkUnavailable):
			f.Reason, f.Message = "NodeUnderPressure", fmt.Sprintf("%s is True, so no new pods are scheduled here: %s",
				c.Type, text)
		default:
			continue
		}
		found = append(found, f)
	}
	return found
}

// machineIdentity reads the IDs that kubelet (by cAdvisor) writes into its Node; without a machine-id, machine is "".
func machineIdentity(files host.Files) (machine, boot string, err error) {
	for _, name := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if machine, err = files.Text(name); err == nil && machine != "" {
			break
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	boot, err = files.Text("/proc/sys/kernel/random/boot_id")
	return checkkit.Sanitize(machine, 64), boot, err
}

func addressesOf(node *corev1.Node) string {
	var addresses []string
	for _, a := range node.Status.Addresses {
		addresses = append(addresses, checkkit.Sanitize(a.Address, 64))
	}
	return finding.JoinFirst(addresses, 4)
}

func registrationFinding(h *host.Host, reason, format string, args ...any) finding.Finding {
	return finding.Finding{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning, Reason: reason,
		Message: fmt.Sprintf(format, args...),
	}
}
