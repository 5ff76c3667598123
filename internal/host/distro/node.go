package distro

import (
	"cmp"
	"path"
	"regexp"
	"strings"
)

// Node is of which distribution a node is. The zero value stands for kubeadm.
type Node struct {
	ID   string `json:"id,omitempty"`
	Unit string `json:"unit,omitempty"` // that runs kubelet, without ".service"; empty: the distribution's first
	// Socket is that of the runtime. It tells which runtime runs where the distribution permits several.
	Socket string `json:"socket,omitempty"`
}

// KubeletUnit is the unit that runs kubelet, without ".service"; empty where no unit of systemd does.
func (n Node) KubeletUnit() string {
	d, ok := ByID(n.ID)
	switch {
	case n.Unit != "":
		return n.Unit
	case !ok:
		return "kubelet"
	case len(d.Units) == 0:
		return ""
	}
	return d.Units[0]
}

// RuntimeUnit is the unit that runs the container runtime: kubelet's own where the distribution has one for both.
func (n Node) RuntimeUnit() string {
	d, ok := ByID(n.ID)
	if !ok {
		d, _ = ByID("kubeadm")
	}
	if len(d.RuntimeUnits) == 0 {
		return n.KubeletUnit()
	}
	if unit := map[string]string{"crio.sock": "crio", "cri-dockerd.sock": "docker"}[path.Base(n.Socket)]; matches(d.RuntimeUnits, unit) {
		return unit
	}
	return d.RuntimeUnits[0]
}

// RunsMore reports whether the units that run kubelet or the runtime run more than that: a kubelet that is a part of a larger
// program, or its child. On a server of K3s this is the control plane.
func (n Node) RunsMore() bool {
	d, _ := ByID(n.ID)
	return d.Launcher != "" || d.Embeds()
}

var (
	kubeletCommand = regexp.MustCompile(
		`\b(journalctl -u|systemctl (?:start|stop|restart|status|reset-failed)) kubelet\b( -u containerd\b)?`)
	runtimeCommand = regexp.MustCompile(
		`(journalctl (?:-u \S+ )?-u|systemctl (?:start|stop|restart|status|reset-failed)) containerd\b`)
)

// Advise rewrites advice that names kubelet's and containerd's units of kubeadm for this node.
func (n Node) Advise(text string) string {
	if !strings.Contains(text, "ctl ") {
		return text
	}
	d, _ := ByID(n.ID)
	text = kubeletCommand.ReplaceAllStringFunc(text, func(command string) string {
		command, both := strings.CutSuffix(command, " -u containerd")
		runtime := ""
		if both {
			runtime = " -u containerd"
		}
		if unit := n.KubeletUnit(); unit != "" {
			return strings.TrimSuffix(command, "kubelet") + unit + runtime
		}
		if both {
			runtime = "`, `journalctl -u containerd"
		}
		return d.Commands.of(command) + runtime
	})
	return runtimeCommand.ReplaceAllStringFunc(text, func(command string) string {
		unit := cmp.Or(n.RuntimeUnit(), "containerd")
		return strings.TrimSuffix(command, "containerd") + unit
	})
}

// of returns the command in the place of one of systemctl or journalctl.
func (c *Commands) of(command string) string {
	switch {
	case c == nil:
		return command
	case strings.HasPrefix(command, "journalctl"):
		return c.Logs
	case strings.Contains(command, " restart "), strings.Contains(command, " reset-failed "):
		return c.Restart
	case strings.Contains(command, " start "):
		return c.Start
	}
	return c.Status
}
