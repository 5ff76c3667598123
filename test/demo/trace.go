package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

// judgePods lets one pod be late for a reason of the system, and one for its user's, and shows how tracecenter explains
// both.
func (s *stage) judgePods(ctx context.Context) (err error) {
	s.title("9. Two pods are late: why, and whose fault is it?")
	s.printf("tracecenter judges every pod of the cluster, here against 20 seconds instead of a minute.")
	trace, err := startProgram(ctx, "tracecenter", "--kubeconfig", s.lab.Paths.AdminKubeconfig, "--promised", "20s")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, trace.stop()) }()
	if err := harness.WaitFor(ctx, "tracecenter to follow the pods", func() error {
		out, err := exec.CommandContext(ctx, trace.binary, "health", "--dir", trace.dir).CombinedOutput()
		if len(out) == 0 || strings.HasPrefix(string(out), "Unknown") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}); err != nil {
		return err
	}
	node := fmt.Sprintf(`{"spec":{"nodeName":%q,"automountServiceAccountToken":false}}`, s.lab.NodeName)
	s.kubectl(ctx, "run", "no-registry", "--image=127.0.0.1:1/app:1", "--overrides="+node)
	s.kubectl(ctx, "run", "no-command", "--image="+lab.BusyboxImage, "--image-pull-policy=Never", "--overrides="+node, "--command", "--", "/no/such")
	for pod, reason := range map[string]string{"no-registry": "RegistryUnavailable (system)", "no-command": "CommandFailed (user)"} {
		if err := harness.WaitFor(ctx, "the verdict about "+pod, func() error {
			out, err := exec.CommandContext(ctx, trace.binary, "pod", "default/"+pod, "--dir", trace.dir).CombinedOutput()
			if !strings.Contains(string(out), reason) {
				return fmt.Errorf("no %s: %w: %s", reason, err, out)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	s.command(ctx, trace.binary, "pod", "default/no-registry", "--dir", trace.dir)
	s.command(ctx, trace.binary, "pod", "default/no-command", "--dir", trace.dir)
	s.command(ctx, trace.binary, "failures", "--dir", trace.dir)
	s.command(ctx, trace.binary, "health", "--dir", trace.dir)
	return nil
}
