package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
)

const conditionType = "ReadonlyFilesystem"

// conditionWatch follows one condition of the node through the apiserver, as any controller does.
type conditionWatch struct {
	changes chan string
	cmd     *exec.Cmd
}

func (b *bench) watch(ctx context.Context) (*conditionWatch, error) {
	argv := b.lab.KubectlCommand()
	argv = append(argv, "get", "node", b.lab.NodeName, "--watch", "-o",
		`jsonpath={.status.conditions[?(@.type=="`+conditionType+`")].status}{"\n"}`)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &conditionWatch{changes: make(chan string, 1000), cmd: cmd} // more than a benchmark ever sees
	go func() {
		defer close(w.changes)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.changes <- strings.TrimSpace(lines.Text())
		}
	}()
	return w, nil
}

func (w *conditionWatch) close() {
	_ = w.cmd.Process.Kill() // it does not end by itself
	_ = w.cmd.Wait()
}

// await returns when the condition has the status.
func (w *conditionWatch) await(ctx context.Context, status string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last := ""
	for {
		select {
		case s, ok := <-w.changes:
			if !ok {
				return fmt.Errorf("the watch of the node has ended")
			}
			if last = s; s == status {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("%s did not become %s within %s, it is %q", conditionType, status, limit, last)
		}
	}
}

// failOnce makes a fresh filesystem fail and returns how long it takes until the condition is seen.
func (b *bench) failOnce(ctx context.Context, w *conditionWatch) (took time.Duration, err error) {
	dir, err := os.MkdirTemp(b.agent.Dir, "disk-") // another one each time: the same one would be damped as flapping
	if err != nil {
		return 0, err
	}
	disk, err := harness.NewDisk(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer func() {
		if removed := disk.Remove(ctx); err == nil {
			err = removed
		}
	}()
	began := time.Now()
	if err := disk.Fail(); err != nil {
		return 0, err
	}
	err = w.await(ctx, "True", 30*time.Second)
	return time.Since(began), err
}

func (b *bench) latency(ctx context.Context) error {
	logf("timing %d disk failures with nodeagent", b.trials)
	if err := b.agent.Start(ctx); err != nil {
		return err
	}
	defer func() { _ = b.agent.Stop() }() // the measurement is over
	w, err := b.watch(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.await(ctx, "False", time.Minute); err != nil {
		return err
	}
	var times []time.Duration
	for range b.trials {
		if err := pause(ctx, 3*time.Second); err != nil { // the condition of the previous trial is written
			return err
		}
		took, err := b.failOnce(ctx, w)
		if err != nil {
			return err
		}
		times = append(times, took)
		if err := w.await(ctx, "False", 30*time.Second); err != nil {
			return err
		}
	}
	b.rows = append(b.rows, row{"ext4 error → condition in a watch of the node", spread(times), "", "300 ms, 1 s"},
		row{"condition clears when the filesystem is gone", "yes", "never (#474)", ""})
	return nil
}

// peerLatency times node-problem-detector with the configuration that it ships. It cannot clear the condition, so it is
// restarted for each trial.
func (b *bench) peerLatency(ctx context.Context) error {
	logf("timing %d disk failures with node-problem-detector", b.peerTrials)
	w, err := b.watch(ctx)
	if err != nil {
		return err
	}
	defer w.close()
	var times []time.Duration
	for range b.peerTrials {
		peer, err := b.startPeer(ctx)
		if err != nil {
			return err
		}
		err = w.await(ctx, "False", time.Minute)
		if err == nil {
			err = pause(ctx, 3*time.Second)
		}
		var took time.Duration
		if err == nil {
			took, err = b.failOnce(ctx, w)
		}
		peer.close()
		if err != nil {
			return fmt.Errorf("node-problem-detector: %w", err)
		}
		times = append(times, took)
	}
	for i := range b.rows {
		if strings.HasPrefix(b.rows[i].what, "ext4 error") {
			b.rows[i].peer = spread(times)
		}
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// buildPeer builds node-problem-detector from its module.
func buildPeer(ctx context.Context, dir string) (string, error) {
	repo, err := harness.Repo()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, "node-problem-detector")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary,
		"k8s.io/node-problem-detector/cmd/nodeproblemdetector")
	cmd.Dir, cmd.Env = filepath.Join(repo, "test/peers"), append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build node-problem-detector: %w\n%s", err, out)
	}
	return binary, nil
}
