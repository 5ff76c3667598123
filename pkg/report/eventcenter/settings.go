package eventcenter

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/event"
)

// Settings configure the destination of events, and the credentials. A file is an absolute path, or the name of a file
// beside the token of the agent's pod.
type Settings struct {
	Endpoints      []string   `yaml:"endpoints"`      // URLs, tried in order; none: disabled
	Cluster        string     `yaml:"cluster"`        // its name, in the source of every event
	Mode           event.Mode `yaml:"mode"`           // initial mode: batch, structured or binary
	CAFile         string     `yaml:"caFile"`         // PEM; the system's unless set
	ServerName     string     `yaml:"serverName"`     // in the certificate; the endpoint's host unless set
	TokenFile      string     `yaml:"tokenFile"`      // bearer token
	ClientCertFile string     `yaml:"clientCertFile"` // PEM, as kubelet's /var/lib/kubelet/pki/kubelet-client-current.pem
	ClientKeyFile  string     `yaml:"clientKeyFile"`  // PEM; may be the same file
}

// Enabled reports whether events are to be sent.
func (s Settings) Enabled() bool { return len(s.Endpoints) > 0 }

// Validate returns the invalid settings.
func (s Settings) Validate() error {
	wrong := setting.Mistakes{}
	for i, endpoint := range s.Endpoints {
		wrong.Add("endpoints."+strconv.Itoa(i), checkEndpoint(endpoint))
	}
	wrong.Check("cluster", !s.Enabled() || s.Cluster != "",
		"must be set where there are endpoints: events of several clusters may meet there")
	wrong.Check("mode", slices.Contains(event.Modes(), s.Mode), "must be batch, structured or binary")
	wrong.Check("clientKeyFile", (s.ClientCertFile == "") == (s.ClientKeyFile == ""),
		"a client certificate and its key are set together")
	for key, name := range map[string]string{"caFile": s.CAFile, "tokenFile": s.TokenFile,
		"clientCertFile": s.ClientCertFile, "clientKeyFile": s.ClientKeyFile} {
		wrong.Check(key, filepath.IsAbs(name) || !strings.Contains(name, "/") && name != "..",
			"%q is neither an absolute path nor a file name", name)
	}
	return wrong.OrNil()
}

// checkEndpoint accepts https, and http to an address of the loopback.
func checkEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%.200q: want a URL such as https://10.96.0.20:10685/v1/events", endpoint)
	case u.Scheme == "https":
		return nil
	case u.Scheme == "http" && net.ParseIP(u.Hostname()).IsLoopback():
		return nil
	}
	return fmt.Errorf("%.200q: must be https; http is for addresses of the loopback only, such as "+
		"http://127.0.0.1:10685", endpoint)
}
