package harness

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/nodeagent/nodeagent/test/lab"
)

// probes is the address of the manifests' probes.
const probes = "127.0.0.1:10690"

// Manifests returns the plain manifests with an image and a configuration, and with the lab's peculiarities: there is
// no kube-proxy behind the apiserver's address, and process 1 may not let its namespaces be opened. stateDir is the one
// in the configuration; if that is wrong, the one in the last good configuration.
func Manifests(l *lab.Lab, image, configuration, stateDir string) (string, error) {
	repo, err := Repo()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(repo, "packaging/kubernetes/manifests/nodeagent.yaml"))
	if err != nil {
		return "", err
	}
	init, err := l.PID("etcd")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(configuration))
	e := editor{
		image: image, configuration: configuration, name: "nodeagent-" + hex.EncodeToString(sum[:5]),
		stateDir: stateDir, init: init,
	}
	e.host, e.port, _ = strings.Cut(strings.TrimPrefix(l.Server(), "https://"), ":")
	var out bytes.Buffer
	encoder, decoder := yaml.NewEncoder(&out), yaml.NewDecoder(bytes.NewReader(data))
	for {
		var object map[string]any
		if err := decoder.Decode(&object); errors.Is(err, io.EOF) {
			return out.String(), encoder.Close()
		} else if err != nil {
			return "", err
		}
		e.edit(object)
		if err := encoder.Encode(object); err != nil {
			return "", err
		}
	}
}

// kubeletRight is the permission to call kubelet, which is off by default: without it no leftover is proven. It does
// not include reading pods, since the agent reads them with the node's identity.
func kubeletRight() (string, error) {
	repo, err := Repo()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(filepath.Join(repo, "packaging/kubernetes/rights.yaml"))
	if err != nil {
		return "", err
	}
	var kept []string
	for object := range strings.SplitSeq(string(data), "\n---\n") {
		if strings.Contains(object, "\n  name: nodeagent-kubelet\n") {
			kept = append(kept, object)
		}
	}
	if len(kept) != 2 {
		return "", fmt.Errorf("rights.yaml: %d objects called nodeagent-kubelet, want a role and its binding",
			len(kept))
	}
	return strings.Join(kept, "\n---\n"), nil
}

// editor makes changes to the manifests.
type editor struct {
	image, configuration, name, stateDir, host, port string
	init                                             int
}

func (e editor) edit(object map[string]any) {
	switch object["kind"] {
	case "ConfigMap":
		object["metadata"].(map[string]any)["name"] = e.name
		object["data"] = map[string]any{"config.yaml": e.configuration}
	case "DaemonSet":
		spec := object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
		e.container(spec["containers"].([]any)[0].(map[string]any))
		for _, v := range spec["volumes"].([]any) {
			if config, ok := v.(map[string]any)["configMap"].(map[string]any); ok {
				config["name"] = e.name
			}
		}
	}
}

func (e editor) container(c map[string]any) {
	c["image"], c["imagePullPolicy"] = e.image, "Never"
	c["env"] = append(c["env"].([]any),
		map[string]any{"name": "KUBERNETES_SERVICE_HOST", "value": e.host},
		map[string]any{"name": "KUBERNETES_SERVICE_PORT", "value": e.port})
	args := c["args"].([]any)
	for i, a := range args {
		if strings.HasPrefix(fmt.Sprint(a), "--last-good=") {
			args[i] = "--last-good=" + filepath.Join(e.stateDir, "last-good.yaml")
		}
	}
	c["args"] = append(args, fmt.Sprintf("--init-pid=%d", e.init))
}
