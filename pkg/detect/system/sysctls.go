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

// sysctls reads /proc/sys/<name> of each wanted setting and, if the value differs,
//
//	/etc/sysctl.conf, /etc/sysctl.d/*.conf, /run/sysctl.d, /usr/local/lib/sysctl.d, /usr/lib/sysctl.d, /lib/sysctl.d
//	net.ipv4.ip_forward = 0
//
// to name the file that most likely set it. https://man7.org/linux/man-pages/man5/sysctl.d.5.html
//
// The check wants the settings of the configuration, and those that Kubernetes needs, each only where it matters:
//
//	net.ipv4.ip_forward=1                  if a pod network is configured (a file in the CNI folder)
//	net.bridge.bridge-nf-call-iptables=1   if the network is the bridge cni0
//	vm.overcommit_memory not 2, vm.panic_on_oom=0, kernel.panic_on_oops=1
//	                                       if kubelet runs, which sets them at its start
//
// https://kubernetes.io/docs/setup/production-environment/container-runtimes/,
// pkg/kubelet/cm/container_manager_linux.go. None is fatal: some networks (Cilium with eBPF routing) do not need
// forwarding.

// SysctlsSettings are the settings of sysctls.
type SysctlsSettings struct {
	Want       map[string]string `yaml:"want"`       // by name, as in sysctl(8); blanks and tabs are equal
	Kubernetes bool              `yaml:"kubernetes"` // also those that Kubernetes needs
}

// DefaultSysctlsSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSysctlsSettings() SysctlsSettings { return SysctlsSettings{Kubernetes: true} }

// Sysctls finds kernel settings that differ from the wanted values.
func Sysctls(s SysctlsSettings) detect.Check {
	return detect.Check{
		ID: "sysctls", Domain: "kernel",
		Summary: "a kernel setting differs from the value that Kubernetes needs or the configuration names",
		Advice: "`sysctl -w NAME=VALUE` sets it now; a file in /etc/sysctl.d that sorts after the one that the " +
			"message names makes it permanent. systemd-networkd and VPN clients set forwarding too. Kubelet sets its " +
			"own settings again when it is restarted.",
		Doc: detect.Doc{
			Reads: []string{"/proc/sys/<name> of each wanted setting", "/etc/cni/net.d, /sys/class/net/cni0: whether " +
				"it matters on this node", "sysctl.conf(5) and sysctl.d(5), where a value differs"},
			Why: "Without forwarding no packet leaves a pod for another node; without bridge-nf-call-iptables pods " +
				"do not reach Services on their own node; a machine that panics when memory is short takes all pods " +
				"with it. A restart of systemd-sysctl or of a network tool resets them, often weeks after the node " +
				"was set up.",
			Faults: []detect.Fault{
				{Reason: "SysctlDrift", Severity: finding.Warning,
					When: "a wanted setting has another value, or does not exist"},
				{Reason: "KubeletSysctlDrift", Severity: finding.Info,
					When: "a setting that kubelet sets at its start was changed since; a warning where pods suffer " +
						"from it"},
			},
			FalseAlarms: "Networks that forward without the kernel's routing. Set want, which takes precedence, or " +
				"kubernetes: false.",
		},
		UsesPartly: []host.Setting{host.CNIConfDir},
		Every:      5 * time.Minute,
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			wanted, err := wantedSysctls(h, s)
			if err == nil && len(wanted) == 0 && s.Kubernetes {
				err = h.Doubts.Of(host.CNIConfDir)
			}
			if err != nil {
				return nil, err
			}
			if len(wanted) == 0 {
				return nil, finding.NotApplicable("no pod network, no kubelet, and no setting in the configuration")
			}
			return compareSysctls(h, wanted)
		},
	}
}

// wantedSysctl is one setting with its wanted value.
type wantedSysctl struct {
	name, value string
	not         bool // any value but this one
	reason      string
	severity    finding.Severity
	why         string
}

// wantedSysctls adds the settings that matter on this node to those of the configuration.
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
			severity: finding.Warning, why: "the kernel drops packets that leave a pod otherwise"})
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
		return wanted, nil //nolint:nilerr // other checks report that kubelet does not run
	}
	const set = "kubelet set it at its start; "
	return append(wanted,
		wantedSysctl{"vm.overcommit_memory", "2", true, "KubeletSysctlDrift", finding.Warning, set +
			"allocations fail although memory is free"},
		wantedSysctl{"vm.panic_on_oom", "0", false, "KubeletSysctlDrift", finding.Warning, set +
			"one pod that runs out of memory takes the node down"},
		wantedSysctl{"kernel.panic_on_oops", "1", false, "KubeletSysctlDrift", finding.Info, set +
			"the node continues to run after an error of the kernel"},
	), nil
}

// podNetwork reports whether a pod network is configured: a CNI configuration other than the loopback device's.
func podNetwork(h *host.Host) (bool, error) {
	names, err := checkkit.ListSorted(h.Files, h.Paths.CNIConfDir)
	return slices.ContainsFunc(names, func(name string) bool {
		return (strings.HasSuffix(name, ".conf") || strings.HasSuffix(name, ".conflist")) &&
			!strings.Contains(name, "loopback")
	}), err
}

func compareSysctls(h *host.Host, wanted []wantedSysctl) ([]finding.Finding, error) {
	var results checkkit.Results
	for _, w := range wanted {
		subject := finding.Subject{Kind: "sysctl", Name: checkkit.Sanitize(w.name, 128)}
		file := checkkit.SysctlFile(w.name)
		if file == "" {
			results.Doubt(subject, fmt.Errorf("%q is not the name of a setting", checkkit.Sanitize(w.name, 128)))
			continue
		}
		value, err := h.Files.Text(file)
		missing := errors.Is(err, fs.ErrNotExist)
		if err != nil && !missing {
			results.Doubt(subject, err)
			continue
		}
		if !missing && slices.Equal(strings.Fields(value), strings.Fields(w.value)) != w.not {
			continue
		}
		results.Add(w.finding(h.Files, subject, checkkit.Sanitize(value, 128), missing), true)
	}
	return results.Done()
}

func (w wantedSysctl) finding(files host.Files, subject finding.Subject, value string, missing bool) finding.Finding {
	f := finding.Finding{
		Subject: subject, Severity: w.severity, Reason: w.reason,
		Facts: map[string]string{"value": value, "wanted": checkkit.Sanitize(w.value, 128)},
	}
	if missing {
		f.Message = fmt.Sprintf("%s does not exist: its module is not loaded; wanted is %s: %s", subject.Name,
			f.Facts["wanted"], w.why)
		return f
	}
	if w.not {
		f.Facts["wanted"] = "not " + f.Facts["wanted"]
	}
	f.Message = fmt.Sprintf("%s is %s, wanted is %s: %s", subject.Name, value, f.Facts["wanted"], w.why)
	if writer := checkkit.SysctlWriter(files, w.name, value); writer != "" {
		f.Facts["writer"] = writer
		f.Message += "; most likely set by " + writer
	}
	return f
}
