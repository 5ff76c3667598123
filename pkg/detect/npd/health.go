package npd

import (
	"context"
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// flagOf returns the value of a flag, parsed like Go's flag package; the last one counts.
func flagOf(args []string, name, otherwise string) string {
	for i, arg := range args {
		key, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || key != name {
			continue
		}
		switch {
		case joined:
			otherwise = value
		case i+1 < len(args):
			otherwise = args[i+1]
		}
	}
	return otherwise
}

// healthCheckOf returns the native check that replaces a health-checker with these arguments; empty for none.
func healthCheckOf(args []string) string {
	switch flagOf(args, "component", "kubelet") { // the default is health-checker's
	case "kubelet":
		return "kubelet-health"
	case "cri", "docker", "containerd", "cri-containerd":
		return "runtime-health"
	case "kube-proxy":
		return "kube-proxy"
	}
	return ""
}

// answer returns the replacement of a plugin: the native check of an ID answers like health-checker, without repairing.
func (o native) answer(id string) func(context.Context, *host.Host) plugin.Result {
	return func(ctx context.Context, h *host.Host) plugin.Result {
		if o.state == nil {
			return o.runNow(ctx, h, id)
		}
		c, ok := o.state(id)
		if !ok {
			return plugin.Result{Message: id + " has not run yet"}
		}
		switch c.Status {
		case finding.StatusHealthy, finding.StatusNotApplicable:
			return plugin.Result{Status: plugin.OK, Message: c.Why}
		case finding.StatusFaulty:
			for _, b := range c.Raised() {
				if b.Severity == finding.Fatal {
					return plugin.Result{Status: plugin.Problem, Message: b.Message}
				}
			}
		}
		return plugin.Result{Message: strings.TrimSuffix(id+" has no result: "+c.Err, ": ")}
	}
}

// runNow runs a native check once.
func (o native) runNow(ctx context.Context, h *host.Host, id string) plugin.Result {
	check, _ := o.find(id)
	l := detect.RunOnce(ctx, h, []detect.Check{check}, nil)[0]
	for _, f := range l.Findings {
		if f.Severity == finding.Fatal && !f.BelowRaise {
			return plugin.Result{Status: plugin.Problem, Message: f.Message}
		}
	}
	if l.Err != nil {
		return plugin.Result{Message: fmt.Sprintf("%s: %v", id, l.Err)}
	}
	return plugin.Result{Status: plugin.OK}
}
