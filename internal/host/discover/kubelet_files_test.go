package discover

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
)

const kubeconfigText = `apiVersion: v1
kind: Config
current-context: here
contexts:
- {name: there, context: {cluster: b, user: other}}
- {name: here, context: {cluster: a, user: node}}
users:
- name: other
  user: {token: secret}
- name: node
  user: {client-certificate: pki/node.crt, client-key: pki/node.key}
`

func TestReadKubeconfig(t *testing.T) {
	dir := t.TempDir()
	for name, test := range map[string]struct {
		text string
		want ClientCertificate
		bad  bool
	}{
		"file": {kubeconfigText, ClientCertificate{File: "/etc/kubernetes/pki/node.crt"}, false},
		"data": {"current-context: c\ncontexts: [{name: c, context: {user: u}}]\nusers: [{name: u, user: " +
			"{client-certificate: /x, client-certificate-data: YWJj}}]", ClientCertificate{PEM: []byte("abc")}, false},
		"token":   {"current-context: c\ncontexts: [{name: c, context: {user: u}}]\nusers: [{name: u, user: {token: t}}]", ClientCertificate{}, false},
		"no user": {"current-context: c\ncontexts: [{name: c, context: {user: u}}]", ClientCertificate{}, true},
		"garbage": {"[", ClientCertificate{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(dir, filepath.Base(t.Name()))
			if err := os.MkdirAll(filepath.Join(root, "etc/kubernetes"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "etc/kubernetes/kubelet.conf"), []byte(test.text),
				0o600); err != nil {
				t.Fatal(err)
			}
			got, err := ReadKubeconfig(host.Files{Root: root}, "/etc/kubernetes/kubelet.conf")
			if diff := cmp.Diff(test.want, got); diff != "" || (err != nil) != test.bad {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestKubeletCredentials(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want KubeletCredentials
	}{
		"defaults": {[]string{"kubelet", "--kubeconfig=/etc/kubernetes/kubelet.conf"},
			KubeletCredentials{"/etc/kubernetes/kubelet.conf", "/var/lib/kubelet/pki"}},
		"moved": {[]string{"kubelet", "--kubeconfig", "/a/conf", "--cert_dir=/a/pki"},
			KubeletCredentials{"/a/conf", "/a/pki"}},
		"standalone": {[]string{"kubelet"}, KubeletCredentials{"", "/var/lib/kubelet/pki"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := &host.Host{}
			h.Kubelet.Process = func() (host.Process, error) { return host.Process{PID: 1, Args: test.args}, nil }
			got, err := FindKubeletCredentials(h)
			if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func FuzzParseKubeconfig(f *testing.F) {
	f.Add([]byte(kubeconfigText))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseKubeconfig(data)
		if err != nil && (got.File != "" || got.PEM != nil) {
			t.Errorf("both %v and %v", got, err)
		}
	})
}
