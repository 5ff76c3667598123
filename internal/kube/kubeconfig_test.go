package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/host/owned"
)

// credentialProgram writes a kubeconfig whose credentials come from a program, which leaves a mark when it runs.
func credentialProgram(t *testing.T, server *fakeServer) (kubeconfig, program, mark string) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig, program, mark = filepath.Join(dir, "etc/kubeconfig"), filepath.Join(dir, "bin/login"),
		filepath.Join(dir, "mark")
	script := fmt.Sprintf("#!/bin/sh\ntouch %s\necho "+
		"'{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"t\"}}'\n", mark)
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":%q,"certificate-authority":%q}}],
"users":[{"name":"u","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":%q,"interactiveMode":"Never"}}}]}`,
		server.URL, filepath.Join(server.dir, "ca.crt"), program)
	if err := errors.Join(os.MkdirAll(filepath.Dir(kubeconfig), 0o755), os.MkdirAll(filepath.Dir(program), 0o755),
		os.WriteFile(kubeconfig, []byte(text), 0o600), executable.Write(program, []byte(script))); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, program, mark
}

// A program in a kubeconfig runs with the agent's rights. So it runs only if the configuration or a trusted kubelet
// names that file, and only root can change file and program.
func TestCredentialPrograms(t *testing.T) {
	named := func(k string) Config { return Config{KubeletKubeconfig: k, KubeletNamed: true} }
	configured := func(k string) Config { return Config{Kubeconfig: k} }
	for name, test := range map[string]struct {
		config func(kubeconfig string) Config
		spoil  func(kubeconfig, program string) error
		others bool // it is refused because others can change it
		runs   bool
	}{
		"named by kubelet":        {named, nil, false, true},
		"configured":              {configured, nil, false, true},
		"found on the disk":       {func(k string) Config { return Config{KubeletKubeconfig: k} }, nil, false, false},
		"file that all may write": {named, func(k, _ string) error { return os.Chmod(k, 0o666) }, true, false},
		"folder that all may": {named, func(k, _ string) error {
			return os.Chmod(filepath.Dir(k), 0o777)
		}, true, false},
		"configured, all may":  {configured, func(k, _ string) error { return os.Chmod(k, 0o666) }, true, false},
		"program that all may": {named, func(_, p string) error { return os.Chmod(p, 0o777) }, true, false},
		"configured, program":  {configured, func(_, p string) error { return os.Chmod(p, 0o777) }, true, false},
		"folder of the program": {named, func(_, p string) error {
			return os.Chmod(filepath.Dir(p), 0o777)
		}, true, false},
		"program that is not here": {named, func(_, p string) error { return os.Remove(p) }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusNotFound)
			})
			kubeconfig, program, mark := credentialProgram(t, server)
			if test.spoil != nil {
				if err := test.spoil(kubeconfig, program); err != nil {
					t.Fatal(err)
				}
			}
			config := test.config(kubeconfig)
			config.Node, config.ServiceAccountDir = testNode, t.TempDir()
			_, _, err := config.Credentials()
			if (err == nil) != test.runs || errors.Is(err, owned.ErrOthers) != test.others {
				t.Errorf("Credentials() = %v", err)
			}
			client, err := New(config, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			_, _ = client.Cluster().Node(t.Context())
			if _, err := os.Stat(mark); (err == nil) != test.runs {
				t.Errorf("the program was run: %v", err == nil)
			}
		})
	}
}

// Kubelet's own kubeconfig is discovered, not configured: root must own the files in it too. A configured one is the
// operator's choice, as long as it names no program.
func TestFoundKubeconfigIsRoots(t *testing.T) {
	server := newFakeServer(t, mute)
	for name, spoil := range map[string]func(t *testing.T, kubeconfig string) error{
		"kubeconfig":           func(_ *testing.T, k string) error { return os.Chmod(k, 0o660) },
		"folder of kubeconfig": func(_ *testing.T, k string) error { return os.Chmod(filepath.Dir(k), 0o777) },
	} {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(server.kubeconfig())
			if err != nil {
				t.Fatal(err)
			}
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			if err := errors.Join(os.WriteFile(kubeconfig, data, 0o600), spoil(t, kubeconfig)); err != nil {
				t.Fatal(err)
			}
			for _, named := range []bool{true, false} {
				c := Config{KubeletKubeconfig: kubeconfig, KubeletNamed: named, ServiceAccountDir: t.TempDir()}
				if _, _, err := c.Credentials(); !errors.Is(err, owned.ErrOthers) || errors.Is(err, fs.ErrNotExist) {
					t.Errorf("found: %v", err)
				}
			}
			if _, _, err := (Config{Kubeconfig: kubeconfig}).Credentials(); err != nil {
				t.Errorf("configured: %v", err)
			}
		})
	}
	for _, key := range []string{"certificate-authority", "client-certificate", "client-key", "tokenFile"} {
		t.Run(key, func(t *testing.T) {
			dir := t.TempDir()
			other := filepath.Join(dir, "open/file")
			if err := errors.Join(os.Mkdir(filepath.Dir(other), 0o700), os.Chmod(filepath.Dir(other), 0o777),
				os.WriteFile(other, nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			user, cluster := "", ""
			if key == "certificate-authority" {
				cluster = fmt.Sprintf(`,%q:%q`, key, other)
			} else {
				user = fmt.Sprintf(`%q:"open/file"`, key) // relative to the folder of the kubeconfig
			}
			text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"https://192.0.2.1"%s}}],"users":[{"name":"u","user":{%s}}]}`, cluster, user)
			kubeconfig := filepath.Join(dir, "kubeconfig")
			if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			c := Config{KubeletKubeconfig: kubeconfig, KubeletNamed: true, ServiceAccountDir: t.TempDir()}
			if _, _, err := c.Credentials(); !errors.Is(err, owned.ErrOthers) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A certificate that others could have put there proves nothing: its owner gets no token.
func TestKubeletPinIsRoots(t *testing.T) {
	selfSigned := newTestCertificate(t, "node-a@1700000000")
	for name, spoil := range map[string]func(root string) error{
		"file":   func(root string) error { return os.Chmod(root+"/pki/kubelet.crt", 0o666) },
		"folder": func(root string) error { return os.Chmod(root+"/pki", 0o777) },
		"root":   func(root string) error { return os.Chmod(root, 0o777) },
	} {
		t.Run(name, func(t *testing.T) {
			kubelet, server, paths := newFakeKubelet(t, selfSigned, func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, kubeletPods)
			})
			file := filepath.Join(paths.KubeletRoot, "pki/kubelet.crt")
			if err := errors.Join(os.WriteFile(file, []byte(selfSigned.pem), 0o600),
				spoil(paths.KubeletRoot)); err != nil {
				t.Fatal(err)
			}
			if _, err := kubelet.Pods(t.Context()); !errors.Is(err, owned.ErrOthers) {
				t.Errorf("got %v", err)
			}
			if n := len(server.seen()); n > 0 {
				t.Errorf("%d requests with a token", n)
			}
		})
	}
}

// A kubeconfig that is there configures an apiserver, also where a file that it names is gone: the error names both, and
// never says that no apiserver is configured.
func TestKubeconfigThatNamesAMissingFile(t *testing.T) {
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],
"clusters":[{"name":"c","cluster":{"server":"https://192.0.2.1"}}],"users":[{"name":"u","user":{"client-certificate":"gone.pem",
"client-key":"gone.pem"}}]}`
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{KubeletKubeconfig: kubeconfig, KubeletNamed: true, ServiceAccountDir: t.TempDir()}
	_, _, err := c.Credentials()
	if err == nil || errors.Is(err, ErrNoCredentials) || !strings.Contains(err.Error(), "gone.pem") ||
		!strings.Contains(err.Error(), "has mode 0600") {
		t.Error(err)
	}
	if _, err := (&Client{config: c}).endpoint(); err == nil || errors.Is(err, hosterr.ErrNotConfigured) {
		t.Error(err)
	}
}
