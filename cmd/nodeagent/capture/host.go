package capture

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
)

// KernelLog returns the last lines of the kernel's log, with the seconds since boot as dmesg prints them.
func KernelLog(ctx context.Context, h *host.Host, most int) ([]byte, error) {
	if h.KernelLog == nil {
		return nil, fmt.Errorf("the kernel's log: %w", hosterr.ErrNotConfigured)
	}
	lines := make([]string, 0, most)
	n := 0
	err := h.KernelLog(ctx, func(r kmsg.KernelRecord) {
		line := fmt.Sprintf("[%12.6f] %s\n", r.Time.Seconds(), r.Text)
		if !r.FromKernel() {
			line = fmt.Sprintf("[%12.6f] (facility %d) %s\n", r.Time.Seconds(), r.Facility, r.Text)
		}
		if len(lines) < most {
			lines = append(lines, line)
		} else {
			lines[n%most] = line
		}
		n++
	})
	if err != nil && n == 0 {
		return nil, err
	}
	var text bytes.Buffer
	if n > most {
		fmt.Fprintf(&text, "(%d lines before these)\n", n-most)
	}
	for i := range lines {
		text.WriteString(lines[(n+i)%len(lines)])
	}
	if err != nil {
		fmt.Fprintf(&text, "(reading it ended here: %v)\n", err)
	}
	return text.Bytes(), nil
}

// Units returns the running and the failed units, and those important ones that are neither.
func Units(ctx context.Context, h *host.Host) ([]byte, error) {
	units, err := host.Ask(ctx, "systemd", h.Systemd.Units)
	if err != nil {
		return nil, err
	}
	neither := []string{}
	for _, name := range slices.Concat(distro.KubeletUnits(), distro.RuntimeUnits(), []string{"nodeagent"}) {
		name += ".service"
		is := func(u systemd.Unit) bool { return u.Name == name }
		if strings.Contains(name, "*") {
			continue
		}
		if !slices.ContainsFunc(units.Failed, is) && !slices.ContainsFunc(units.Running, is) {
			neither = append(neither, name)
		}
	}
	return json.Marshal(map[string]any{"failed": units.Failed, "omitted": units.Omitted, "running": units.Running,
		"neither": neither})
}

// Versions returns the versions of the programs on a host. An unavailable one is replaced by its error.
func Versions(ctx context.Context, h *host.Host, agent string) ([]byte, error) {
	versions := map[string]string{"agent": agent + " " + runtime.Version() + " " + runtime.GOARCH}
	note := func(name, text string, err error) {
		if err != nil {
			text = "error: " + err.Error()
		}
		versions[name] = text
	}
	kernel, err := h.Files.Text("/proc/version")
	note("kernel", kernel, err)
	system, err := h.Files.Text("/etc/os-release")
	note("operatingSystem", system, err)
	engine, err := host.Ask(ctx, "runtime", h.Runtime.Version)
	note("runtime", engine.GetRuntimeName()+" "+engine.GetRuntimeVersion(), err)
	version, err := kubeletVersion(ctx, h)
	note("kubelet", version, err)
	return json.Marshal(versions)
}

func kubeletVersion(ctx context.Context, h *host.Host) (string, error) {
	if h.Kubelet.Metric == nil {
		return "", hosterr.ErrNotConfigured
	}
	samples, err := h.Kubelet.Metric(ctx, "kubernetes_build_info")
	for labels := range samples {
		return kubelet.Sample{Labels: labels}.Label("git_version"), err
	}
	return "", err
}

// Mounts returns the host's mount table.
func Mounts(_ context.Context, h *host.Host) ([]byte, error) {
	return h.Files.Read(path.Join("/proc", strconv.Itoa(h.Paths.InitPID), "mountinfo"))
}
