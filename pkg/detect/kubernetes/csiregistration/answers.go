package csiregistration

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	csiAskEvery = time.Minute // GetInfo of a healthy plugin: registrars write a log line for each
	maxParallel = 4           // plugins called at a time
)

// csiAnswer holds the answers of a plugin on its sockets.
type csiAnswer struct {
	Socket   kubelet.PluginSocket
	Asked    finding.Timestamp // of the last GetInfo
	Info     kubelet.PluginInfo
	InfoErr  error
	Ready    bool
	ProbeErr error
}

// healthy reports whether none of the answers is a fault.
func (a csiAnswer) healthy() bool {
	return a.InfoErr == nil && a.ProbeErr == nil && (a.Ready || !a.csi())
}

// csi reports whether the plugin is a CSI driver by its answer.
func (a csiAnswer) csi() bool { return a.InfoErr == nil && a.Info.Type == registration.CSIPlugin }

// ask calls all plugins, several at a time, so that a silent one costs its own time only.
func (c *csiCheck) ask(ctx context.Context, h *host.Host, sockets []kubelet.PluginSocket, now finding.Timestamp) {
	answers := make([]csiAnswer, len(sockets))
	var asking errgroup.Group
	asking.SetLimit(maxParallel)
	for i, socket := range sockets {
		asking.Go(func() error {
			answers[i] = c.askOne(ctx, h, socket, c.answers[socket.Path], now)
			return nil
		})
	}
	_ = asking.Wait() // an answer has its own error
	clear(c.answers)
	for i, socket := range sockets {
		c.answers[socket.Path] = answers[i]
	}
}

// askOne calls one plugin, given its last answer.
func (c *csiCheck) askOne(ctx context.Context, h *host.Host, socket kubelet.PluginSocket, last csiAnswer,
	now finding.Timestamp) csiAnswer {
	ctx, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	answer := last
	if last.Socket != socket || !last.healthy() || now.Since(last.Asked) >= csiAskEvery {
		answer = csiAnswer{Socket: socket, Asked: now}
		answer.Info, answer.InfoErr = h.Plugins.GetInfo(ctx, socket.Path)
	} else {
		answer.InfoErr = h.Plugins.Connect(ctx, socket.Path)
	}
	if !answer.csi() {
		return answer
	}
	answer.Ready, answer.ProbeErr = h.Plugins.Probe(ctx, answer.Info.Endpoint)
	return answer
}
