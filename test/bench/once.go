package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
)

// wholeCheck measures "nodeagent check" with everything on, as a person calls it.
func (b *bench) wholeCheck(ctx context.Context) error {
	say("timing nodeagent check")
	const times = 10
	var cpu, wall []time.Duration
	for range times {
		answer, err := b.agent.CLI(ctx, "check")
		if err != nil {
			return err
		}
		cpu, wall = append(cpu, answer.CPU), append(wall, answer.Wall)
	}
	b.rows = append(b.rows,
		row{"check, everything on: CPU of the command, its children's too", spread(cpu), "–", "150 ms"},
		row{"check: wall time", spread(wall), "–", "500 ms"})
	return nil
}

// podManifest is one pod of three containers.
const podManifest = `---
apiVersion: v1
kind: Pod
metadata: {name: bench-%d, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: true
  containers:
  - {name: a, image: "localhost/busybox:1", imagePullPolicy: Never, command: ["sleep", "100000"]}
  - {name: b, image: "localhost/busybox:1", imagePullPolicy: Never, command: ["sleep", "100000"]}
  - {name: c, image: "localhost/busybox:1", imagePullPolicy: Never, command: ["sleep", "100000"]}
`

// inspection measures what one inspection of many pods costs, and that a quiet node causes no traffic.
func (b *bench) inspection(ctx context.Context) error {
	say("inspecting %d pods", b.pods)
	var manifest strings.Builder
	for i := range b.pods {
		fmt.Fprintf(&manifest, podManifest, i)
	}
	if err := b.lab.KubectlApply(ctx, manifest.String()); err != nil {
		return err
	}
	defer func() {
		_, _ = b.lab.Kubectl(context.WithoutCancel(ctx), "delete", "pods", "--all", "--force", "--grace-period=0", "-n",
			"default")
	}()
	if _, err := b.lab.Kubectl(ctx, "wait", "--for=condition=Ready", "pods", "--all", "-n", "default",
		"--timeout=5m"); err != nil {
		return err
	}
	var inspected harness.Inspected
	var cpu, wall []time.Duration
	if _, err := b.agent.JSON(ctx, &inspected, "inspect"); err != nil {
		return err
	}
	for range 5 {
		answer, err := b.agent.CLI(ctx, "inspect")
		if err != nil {
			return err
		}
		cpu, wall = append(cpu, answer.CPU), append(wall, answer.Wall)
	}
	b.rows = append(b.rows,
		row{fmt.Sprintf("inspect, %d pods, %d objects: CPU of the whole command", b.pods, len(inspected.Objects)),
			spread(cpu), "–", "150 ms"},
		row{"inspect: wall time", spread(wall), "–", ""},
		row{"inspect: suspicious objects → apiserver asked", fmt.Sprintf("%d → %s", inspected.Suspicious(),
			inspected.Gate("apiserver-heard")), "–", "not asked"})
	return nil
}
