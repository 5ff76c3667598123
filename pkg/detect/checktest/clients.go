package checktest

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
	"github.com/nodeagent/nodeagent/internal/host/packetfilter"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/host/watch"
)

// fixtureClients fake the clients whose answers are not files, by the name below clients/.
func fixtureClients() map[string]func(t *testing.T, h *host.Host, file txtar.File) {
	return map[string]func(t *testing.T, h *host.Host, file txtar.File){
		"kubelet-pods.json": func(t *testing.T, h *host.Host, file txtar.File) {
			var pods []corev1.Pod
			strictJSON(t, file, &pods)
			h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return pods, nil }
		},
		"kmsg": func(t *testing.T, h *host.Host, file txtar.File) { h.KernelLog = fixtureKernelLog(t, file) },
		"kubelet-process.json": func(t *testing.T, h *host.Host, file txtar.File) {
			var kubelet host.Process
			strictJSON(t, file, &kubelet)
			h.Kubelet.Process = func() (host.Process, error) { return kubelet, nil }
		},
		"paths.json": func(t *testing.T, h *host.Host, file txtar.File) { strictJSON(t, file, &h.Paths) },
		"cri-status.json": func(t *testing.T, h *host.Host, file txtar.File) {
			var status cri.RuntimeStatus
			strictJSON(t, file, &status)
			h.Runtime.Status = func(context.Context) (*cri.StatusResponse, error) {
				return &cri.StatusResponse{Status: &status}, nil
			}
		},
		"executables.json": func(t *testing.T, h *host.Host, file txtar.File) { // files that are programs
			var names []string
			strictJSON(t, file, &names)
			for _, name := range names {
				WriteFile(t, h.Files.Root, txtar.File{Name: name, Data: []byte("\x7fELF")})
				if err := os.Chmod(h.Files.Path(name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
		},
		"probe.json": func(t *testing.T, h *host.Host, file txtar.File) {
			h.Prober = fixtureProber(t, file)
		},
		"kubelet-metrics":       serveKubeletMetrics,
		"node.json":             setNode,
		"kubelet-serving":       setKubeletServing,
		"time-synchronised":     setTime,
		"kubelet-pods-error":    failKubeletPods,
		"cri.json":              serveCRI,
		"kubelet-process":       setKubeletProcess,
		"kubelet-metrics-error": failKubeletMetrics,
		"network.json":          FixtureNetwork,
		"packet-filter.json": func(t *testing.T, h *host.Host, file txtar.File) {
			var filter packetfilter.PacketFilter
			strictJSON(t, file, &filter)
			h.Network.PacketFilter = func() (packetfilter.PacketFilter, error) { return filter, nil }
		},
		"network-layout.json": func(t *testing.T, h *host.Host, file txtar.File) {
			var layout netlink.NetworkLayout
			strictJSON(t, file, &layout)
			h.Network.Layout = func() (netlink.NetworkLayout, error) { return layout, nil }
		},
		"systemd.json": serveSystemd,
		"daemons.json": fixtureDaemons,
		"wtmp.json":    fixtureLogins,
		"inotify.json": func(t *testing.T, h *host.Host, file txtar.File) {
			var room watch.InotifyRoom
			strictJSON(t, file, &room)
			h.Inotify = func() (watch.InotifyRoom, error) { return room, nil }
		},
		"clock.json": func(t *testing.T, h *host.Host, file txtar.File) {
			var clock host.ClockState
			strictJSON(t, file, &clock)
			h.TimeClock = func() (host.ClockState, error) { return clock, nil }
		},
	}
}

// fixtureDaemons names the processes that are "kubelet" and "runtime".
func fixtureDaemons(t *testing.T, h *host.Host, file txtar.File) {
	var pids map[string]int
	strictJSON(t, file, &pids)
	process := func(role string) (host.Process, error) {
		stat, err := h.ProcStat(pids[role])
		return host.Process{PID: stat.PID, StartTime: stat.StartTime, Comm: stat.Comm}, err
	}
	h.Kubelet.Process = func() (host.Process, error) { return process("kubelet") }
	h.Runtime.Process = func(context.Context) (host.Process, error) { return process("runtime") }
}

// fixtureProber answers from a file, by path, and fails the test for any other path: it must not be accessed.
func fixtureProber(t *testing.T, file txtar.File) probe.Prober {
	t.Helper()
	var answers map[string]struct {
		probe.ProbeAnswer
		Hang bool `json:"hang"`
	}
	strictJSON(t, file, &answers)
	return probe.Prober{Do: func(ctx context.Context, request probe.ProbeRequest) (probe.ProbeAnswer, error) {
		answer, known := answers[request.Path]
		switch {
		case !known:
			t.Errorf("probe of %s", request.Path)
			return probe.ProbeAnswer{}, errors.New("must not be accessed")
		case answer.Hang:
			return probe.ProbeAnswer{}, context.DeadlineExceeded
		}
		return answer.ProbeAnswer, nil
	}}
}

// fixtureKernelLog answers with raw records, one a line.
func fixtureKernelLog(t *testing.T, file txtar.File) func(context.Context, func(kmsg.KernelRecord)) error {
	t.Helper()
	return func(_ context.Context, each func(kmsg.KernelRecord)) error {
		for line := range strings.Lines(string(file.Data)) {
			r, err := kmsg.ParseKernelRecord([]byte(strings.TrimSuffix(line, "\n")))
			if err != nil {
				return err
			}
			r.Up = r.Time
			each(r)
		}
		return nil
	}
}
