package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// podManifest is one pod of three containers, with volumes that are mounts.
const podManifest = `---
apiVersion: v1
kind: Pod
metadata: {name: bench-%d, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: true
  containers:
  - {name: a, image: "registry.k8s.io/pause:3.6", imagePullPolicy: Never, volumeMounts: [{name: v0, mountPath: /data}]}
  - {name: b, image: "registry.k8s.io/pause:3.6", imagePullPolicy: Never}
  - {name: c, image: "registry.k8s.io/pause:3.6", imagePullPolicy: Never}
  volumes:
`

// memoryVolumes is how many volumes of each pod are mounts of their own.
const memoryVolumes = 10

// fillNode brings the node to n running pods.
func (b *bench) fillNode(ctx context.Context, n int) error {
	logf("starting pods: %d → %d", b.running, n)
	var manifest strings.Builder
	for i := b.running; i < n; i++ {
		fmt.Fprintf(&manifest, podManifest, i)
		for v := range memoryVolumes {
			fmt.Fprintf(&manifest, "  - {name: v%d, emptyDir: {medium: Memory}}\n", v)
		}
	}
	if manifest.Len() == 0 {
		return nil
	}
	if err := b.lab.KubectlApply(ctx, manifest.String()); err != nil {
		return err
	}
	b.running = n
	_, err := b.lab.Kubectl(ctx, "wait", "--for=condition=Ready", "pods", "--all", "-n", "default", "--timeout=10m")
	return err
}

// emptyNode removes the pods of fillNode.
func (b *bench) emptyNode(ctx context.Context) {
	if b.running > 0 {
		_, _ = b.lab.Kubectl(context.WithoutCancel(ctx), "delete", "pods", "--all", "--force", "--grace-period=0", "-n",
			"default") // the lab ends soon
	}
	b.running = 0
}

// settleNode waits until the node is at rest after pods were started, and no longer overloaded: the agent would look
// for the cause.
func (b *bench) settleNode(ctx context.Context) error {
	logf("waiting until the node is at rest")
	for limit := time.Now().Add(20 * time.Minute); ; {
		if err := pause(ctx, 20*time.Second); err != nil {
			return err
		}
		text, err := os.ReadFile("/proc/loadavg")
		var one float64
		if _, scan := fmt.Sscan(string(text), &one); err != nil || scan != nil {
			return errors.Join(err, scan)
		}
		if one < float64(runtime.NumCPU())/2 { // of the last minute: two more are left for settling
			return nil
		}
		if time.Now().After(limit) {
			return fmt.Errorf("this machine is not at rest: load %s", text)
		}
	}
}
