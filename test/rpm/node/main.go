// Command node stands in for kubelet and the apiserver of the machine in which the package is tested: neither is built
// yet when those tests run. Their answers are in files that a test writes, so that they can change:
//
//	/root/node/kubelet.json  kubelet's /pods
//	/root/node/pods.json     the apiserver's list of the node's pods
//	/root/node/node.json     its Node object
//
// It serves kubelet's API on port 10250, healthz on 10248 and the apiserver on 6443, with its own certificate, which it
// puts in the place of kubelet's own. It rejects requests without the token.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	files       = "/root/node/"
	certificate = "/var/lib/kubelet/pki/kubelet.crt"
	token       = "Bearer of-this-node"

	// Kubelet has read its sources and is not ending any unwanted pod.
	metrics = "kubelet_working_pods{config=\"desired\",lifecycle=\"sync\",static=\"\"} 1\n" +
		"kubelet_working_pods{config=\"orphan\",lifecycle=\"terminating\",static=\"\"} 0\n" +
		"kubernetes_build_info{git_version=\"v1.36.3\",major=\"1\",minor=\"36\"} 1\n"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	pair, err := selfSigned()
	if err != nil {
		return err
	}
	failed := make(chan error, 3) // one of each server
	listen := func(port int, handler http.HandlerFunc, secure bool) {
		server := &http.Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), Handler: handler,
			ReadHeaderTimeout: 5 * time.Second}
		if !secure {
			failed <- server.ListenAndServe()
			return
		}
		server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
		failed <- server.ListenAndServeTLS("", "")
	}
	go listen(10248, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }, false)
	go listen(10250, kubelet, true)
	go listen(6443, apiserver, true)
	return <-failed
}

func kubelet(w http.ResponseWriter, r *http.Request) {
	switch {
	case !known(w, r):
	case r.URL.Path == "/pods":
		answer(w, "kubelet.json")
	case r.URL.Path == "/metrics":
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, metrics)
	default:
		http.NotFound(w, r)
	}
}

func apiserver(w http.ResponseWriter, r *http.Request) {
	switch path := r.URL.Path; {
	case !known(w, r):
	case r.Method == http.MethodPost: // an event
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, r.Body)
	case path == "/api/v1/pods" && r.URL.Query().Get("watch") == "":
		answer(w, "pods.json")
	case strings.HasPrefix(path, "/apis/storage.k8s.io/v1/csinodes/"):
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w,
			`{"kind":"CSINode","apiVersion":"storage.k8s.io/v1","metadata":{"name":"node","uid":"of-csinode"},"spec":{"drivers":null}}`)
	case strings.HasPrefix(path, "/api/v1/nodes/"): // also a patch of its status
		answer(w, "node.json")
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}
}

func known(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get("Authorization") == token {
		return true
	}
	w.WriteHeader(http.StatusUnauthorized)
	return false
}

func answer(w http.ResponseWriter, name string) {
	data, err := os.ReadFile(files + name)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

// selfSigned makes a certificate and writes it to the disk.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "node"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	data, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, err
	}
	err = errors.Join(os.MkdirAll(filepath.Dir(certificate), 0o755),
		os.WriteFile(certificate, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: data}), 0o600))
	return tls.Certificate{Certificate: [][]byte{data}, PrivateKey: key}, err
}
