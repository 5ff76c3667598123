package system

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// sysctls reads /proc/sys/<name> of what is wanted, and only where one has another value
//
//	/etc/sysctl.conf, /etc/sysctl.d/*.conf, /run/sysctl.d, /usr/local/lib/sysctl.d, /usr/lib/sysctl.d, /lib/sysctl.d
//	net.ipv4.ip_forward = 0
//
// to say who most likely wrote it. https://man7.org/linux/man-pages/man5/sysctl.d.5.html
//
// Wanted is what the configuration names, and what Kubernetes cannot do without, each only where it matters:
//
//	net.ipv4.ip_forward=1                  where a network of pods is configured (a file in the CNI folder): the kernel drops
//	                                       what is to leave a pod otherwise
//	net.bridge.bridge-nf-call-iptables=1   where the network is the bridge cni0: Services of pods on the same node fail otherwise
//	vm.overcommit_memory not 2, vm.panic_on_oom=0, kernel.panic_on_oops=1
//	                                       where kubelet runs, which sets them at its start: somebody changed them since
//
// https://kubernetes.io/docs/setup/production-environment/container-runtimes/,
// pkg/kubelet/cm/container_manager_linux.go
//
// Nothing of it is fatal: some networks (Cilium with eBPF routing) do without forwarding.
//
// Known false alarms, and what is done: a value that is wanted otherwise on purpose can be set in want, which goes
// before what is built in; kubernetes: false leaves all built-in ones out.

// SysctlsSettings are the settings of sysctls.
type SysctlsSettings struct {
	Want       map[string]string `yaml:"want"`       // by name, as sysctl(8) has it; blanks are as good as tabs
	Kubernetes bool              `yaml:"kubernetes"` // what Kubernetes cannot do without, too
}

// DefaultSysctlsSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSysctlsSettings() SysctlsSettings { return SysctlsSettings{Kubernetes: true} }

const sysctlsID = "sysctls"

// Sysctls finds kernel settings that have drifted from what is wanted.
func Sysctls(s SysctlsSettings) detect.Check {
	return detect.Check{
		ID: sysctlsID, Domain: "kernel",
		Summary: "a kernel setting is not what Kubernetes needs, or what the configuration wants",
		Advice: "sysctl -w NAME=VALUE sets it now; a file in /etc/sysctl.d that sorts behind the one that the " +
			"message names keeps it. systemd-networkd and VPN clients set forwarding too. What kubelet set comes " +
			"back when it is restarted.",
		Doc: detect.Doc{
			Reads: []string{"/proc/sys/<name> of what is wanted", "/etc/cni/net.d, /sys/class/net/cni0: whether it " +
				"matters here", "sysctl.conf(5) and sysctl.d(5), where one has drifted"},
			Why: "Without forwarding no packet leaves a pod for another node; without bridge-nf-call-iptables pods " +
				"do not reach Services on their own node; a machine that panics when memory is short takes all pods " +
				"with it. A restart of systemd-sysctl or of a network tool sets them back, often weeks after the " +
				"node was made.",
			Faults: []detect.Fault{
				{Reason: "SysctlDrift", Severity: finding.Warning,
					When: "a wanted setting has another value, or does not exist"},
				{Reason: "KubeletSysctlDrift", Severity: finding.Info,
					When: "what kubelet set at its start was changed since; a warning where pods suffer from it"},
			},
			FalseAlarms: "Networks that forward without the kernel's routing. Set want, or kubernetes: false.",
		},
		Every: 5 * time.Minute,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			wanted, err := wantedSysctls(h, s)
			if err != nil {
				return nil, err
			}
			if len(wanted) == 0 {
				return nil, finding.NotApplicable("no pods' network, no kubelet, and nothing named in the " +
					"configuration")
			}
			return lookAtSysctls(h, wanted)
		},
	}
}

// wantedSysctl is one setting with what it ought to be.
type wantedSysctl struct {
	name, value string
	not         bool // any value but this one
	reason      string
	severity    finding.Severity
	why         string
}

// wantedSysctls adds what matters on this node to what the configuration names.
func wantedSysctls(h *host.Host, s SysctlsSettings) ([]wantedSysctl, error) {
	var wanted []wantedSysctl
	for _, name := range slices.Sorted(maps.Keys(s.Want)) {
		wanted = append(wanted, wantedSysctl{name: name, value: s.Want[name], reason: "SysctlDrift",
			severity: finding.Warning, why: "the configuration wants it"})
	}
	if !s.Kubernetes {
		return wanted, nil
	}
	builtIn, err := kubernetesSysctls(h)
	for _, w := range builtIn {
		if _, named := s.Want[w.name]; !named {
			wanted = append(wanted, w)
		}
	}
	return wanted, err
}

func kubernetesSysctls(h *host.Host) ([]wantedSysctl, error) {
	var wanted []wantedSysctl
	network, err := podNetwork(h)
	if err != nil {
		return nil, err
	}
	if network {
		wanted = append(wanted, wantedSysctl{name: "net.ipv4.ip_forward", value: "1", reason: "SysctlDrift",
			severity: finding.Warning, why: "nothing leaves a pod otherwise"})
	}
	const bridge = "net.bridge.bridge-nf-call-iptables"
	_, errCNI := h.Files.Stat("/sys/class/net/cni0")
	_, errModule := h.Files.Stat(checkkit.SysctlFile(bridge))
	if errCNI == nil && errModule == nil {
		wanted = append(wanted, wantedSysctl{name: bridge, value: "1", reason: "SysctlDrift", severity: finding.Warning,
			why: "pods do not reach Services on their own node otherwise"})
	}
	if h.Kubelet.Process == nil {
		return wanted, nil
	}
	if _, err := h.Kubelet.Process(); err != nil {
		return wanted, nil //nolint:nilerr // that kubelet is not there is for others to tell
	}
	const set = "kubelet set it at its start; "
	return append(wanted,
		wantedSysctl{"vm.overcommit_memory", "2", true, "KubeletSysctlDrift", finding.Warning, set +
			"programs get no memory although there is some"},
		wantedSysctl{"vm.panic_on_oom", "0", false, "KubeletSysctlDrift", finding.Warning, set +
			"one pod without memory takes the node down"},
		wantedSysctl{"kernel.panic_on_oops", "1", false, "KubeletSysctlDrift", finding.Info, set +
			"the node goes on after an error of the kernel"},
	), nil
}

// podNetwork reports whether a network of pods is configured: a CNI configuration that is more than the loopback
// device.
func podNetwork(h *host.Host) (bool, error) {
	names, err := h.Files.List(h.Paths.CNIConfDir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(names, func(name string) bool {
		return (strings.HasSuffix(name, ".conf") || strings.HasSuffix(name, ".conflist")) &&
			!strings.Contains(name, "loopback")
	}), nil
}

func lookAtSysctls(h *host.Host, wanted []wantedSysctl) ([]finding.Finding, error) {
	doubts := make(map[finding.Subject]error)
	var findings []finding.Finding
	for _, w := range wanted {
		subject := finding.Subject{Kind: "sysctl", Name: checkkit.Sanitize(w.name, 128)}
		file := checkkit.SysctlFile(w.name)
		if file == "" {
			doubts[subject] = fmt.Errorf("%q is not the name of a setting", checkkit.Sanitize(w.name, 128))
			continue
		}
		value, err := h.Files.Text(file)
		missing := errors.Is(err, fs.ErrNotExist)
		if err != nil && !missing {
			doubts[subject] = err
			continue
		}
		if !missing && slices.Equal(strings.Fields(value), strings.Fields(w.value)) != w.not {
			continue
		}
		findings = append(findings, w.finding(h.Files, subject, checkkit.Sanitize(value, 128), missing))
	}
	return findings, finding.Partial(doubts)
}

func (w wantedSysctl) finding(files host.Files, subject finding.Subject, value string, missing bool) finding.Finding {
	f := finding.Finding{
		Check: sysctlsID, Subject: subject, Severity: w.severity, Reason: w.reason,
		Facts: map[string]string{"value": value, "wanted": checkkit.Sanitize(w.value, 128)},
	}
	switch {
	case missing:
		f.Facts["wanted"] = checkkit.Sanitize(w.value, 128)
		f.Message = fmt.Sprintf("%s does not exist: its module is not loaded; wanted is %s: %s", subject.Name,
			f.Facts["wanted"], w.why)
		return f
	case w.not:
		f.Facts["wanted"] = "not " + f.Facts["wanted"]
	}
	f.Message = fmt.Sprintf("%s is %s, wanted is %s: %s", subject.Name, value, f.Facts["wanted"], w.why)
	if writer := checkkit.SysctlWriter(files, w.name, value); writer != "" {
		f.Facts["writer"] = writer
		f.Message += "; most likely set by " + writer
	}
	return f
}
