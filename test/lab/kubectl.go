package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// Kubectl runs kubectl as the cluster's admin and returns its standard output; the error has its standard error.
func (l *Lab) Kubectl(ctx context.Context, args ...string) ([]byte, error) {
	return l.kubectl(ctx, "", args...)
}

// KubectlApply applies a manifest, of one object or several.
func (l *Lab) KubectlApply(ctx context.Context, manifest string) error {
	_, err := l.kubectl(ctx, manifest, "apply", "-f", "-")
	return err
}

func (l *Lab) kubectl(ctx context.Context, stdin string, args ...string) ([]byte, error) {
	return run(ctx, stdin, append(l.KubectlCommand(), args...)...)
}

// KubectlCommand is kubectl with the arguments for the admin of this cluster.
func (l *Lab) KubectlCommand() []string {
	return []string{l.Paths.Kubectl, "--kubeconfig=" + l.Paths.AdminKubeconfig, "--cache-dir=" +
		filepath.Join(l.Dir, "kubectl-cache")}
}

// WaitNamespace waits until pods can be created in a namespace: they need its ServiceAccount and the CA's ConfigMap.
func (l *Lab) WaitNamespace(ctx context.Context, namespace string) error {
	return poll(ctx, Patience, 200*time.Millisecond, func(ctx context.Context) error {
		base := l.Server() + "/api/v1/namespaces/" + namespace
		_, err1 := l.fetch(ctx, base+"/serviceaccounts/default")
		_, err2 := l.fetch(ctx, base+"/configmaps/kube-root-ca.crt")
		return errors.Join(err1, err2)
	})
}

// PodStatus has the fields that WaitPodRunning waits for.
type PodStatus struct {
	UID, Phase, IP string
	ContainerIDs   []string // "containerd://…", in the order of the pod's containers
}

// RunPod creates a pod of busybox on the lab's node and returns without waiting. Without a command it sleeps. It ends
// within a second of its deletion, because a shell as PID 1 ignores SIGTERM.
func (l *Lab) RunPod(ctx context.Context, namespace, name string, command ...string) error {
	if len(command) == 0 {
		command = []string{"sleep", "1000000"}
	}
	pod := map[string]any{
		"apiVersion": "v1",
		"kind":       "Pod",
		"metadata":   map[string]any{"name": name, "namespace": namespace, "labels": map[string]string{"app": name}},
		"spec": map[string]any{
			"nodeName":                      l.NodeName,
			"terminationGracePeriodSeconds": 1,
			"tolerations":                   []map[string]string{{"operator": "Exists"}},
			"containers": []map[string]any{{
				"name": "main", "image": BusyboxImage, "imagePullPolicy": "Never", "command": command,
			}},
		},
	}
	manifest, err := json.Marshal(pod)
	if err != nil {
		return err
	}
	if err := l.WaitNamespace(ctx, namespace); err != nil {
		return err
	}
	return l.KubectlApply(ctx, string(manifest))
}

// Pod returns the status of a pod.
func (l *Lab) Pod(ctx context.Context, namespace, name string) (PodStatus, error) {
	body, err := l.fetch(ctx, l.Server()+"/api/v1/namespaces/"+namespace+"/pods/"+name)
	if err != nil {
		return PodStatus{}, err
	}
	var pod struct {
		Metadata struct{ UID string }
		Status   struct {
			Phase, PodIP      string
			ContainerStatuses []struct {
				ContainerID string
				Ready       bool
			}
		}
	}
	if err := json.Unmarshal(body, &pod); err != nil {
		return PodStatus{}, fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	status := PodStatus{UID: pod.Metadata.UID, Phase: pod.Status.Phase, IP: pod.Status.PodIP}
	for _, c := range pod.Status.ContainerStatuses {
		status.ContainerIDs = append(status.ContainerIDs, c.ContainerID)
	}
	return status, nil
}

// WaitPodRunning waits until a pod runs and has an address. The error has the pod's events.
func (l *Lab) WaitPodRunning(ctx context.Context, namespace, name string) (PodStatus, error) {
	var status PodStatus
	err := poll(ctx, Patience, 200*time.Millisecond, func(ctx context.Context) (err error) {
		if status, err = l.Pod(ctx, namespace, name); err != nil {
			return err
		}
		if status.Phase != "Running" || status.IP == "" {
			return fmt.Errorf("pod %s/%s: phase %q, address %q", namespace, name, status.Phase, status.IP)
		}
		return nil
	})
	if err != nil {
		events, _ := l.Kubectl(ctx, "get", "events", "-n", namespace, "--field-selector", "involvedObject.name="+name)
		return status, fmt.Errorf("%w\n%s", err, events)
	}
	return status, nil
}

// DeletePod deletes a pod and waits until it is gone from the apiserver.
func (l *Lab) DeletePod(ctx context.Context, namespace, name string) error {
	_, err := l.Kubectl(ctx, "delete", "pod", "-n", namespace, name, "--timeout="+Patience.String())
	return err
}

// ServiceAccountKubeconfig writes a kubeconfig for an existing ServiceAccount, with a token that is bound to the lab's
// node and valid for a day, like that of a pod of the account on that node. The token is in file + ".token", which the
// kubeconfig names, so that it can be replaced while clients run.
func (l *Lab) ServiceAccountKubeconfig(ctx context.Context, namespace, name, file string) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	token, err := l.Kubectl(ctx, "create", "token", name, "-n", namespace,
		"--bound-object-kind", "Node", "--bound-object-name", l.NodeName, "--duration", "24h")
	if err != nil {
		return err
	}
	tokenFile := file + ".token"
	if err := writeFile(tokenFile, []byte(strings.TrimSpace(string(token))), 0o600); err != nil {
		return err
	}
	return l.writeKubeconfig(file, identity{TokenFile: tokenFile})
}
