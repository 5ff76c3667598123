package eventcenter_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/report/eventcenter"
)

func TestSettings(t *testing.T) {
	for name, want := range map[string]string{
		`{"Endpoints":["https://10.0.0.1:1/v1/events"]}`:                                       "cluster",
		`{"Endpoints":["http://10.0.0.1:1/v1/events"],"Cluster":"c"}`:                          "endpoints.0",
		`{"Endpoints":["http://localhost:1/"],"Cluster":"c"}`:                                  "endpoints.0",
		`{"Endpoints":["http://127.0.0.1:1/","https://u:p@x/"],"Cluster":"c"}`:                 "endpoints.1",
		`{"Endpoints":["http://127.0.0.1:1/","http://[::1]:1/","https://x:1/"],"Cluster":"c"}`: "",
		`{"ClientCertFile":"/a"}`:                                                              "clientKeyFile",
		`{"TokenFile":"../token"}`:                                                             "tokenFile",
		`{"TokenFile":"token"}`:                                                                "",
		`{"Mode":"pigeon"}`:                                                                    "mode",
	} {
		s := eventcenter.Settings{Mode: event.Batch}
		must(t, json.Unmarshal([]byte(name), &s))
		var got []string
		mistakes, _ := errors.AsType[setting.Mistakes](s.Validate())
		for key := range mistakes {
			got = append(got, key)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: problems with %v, want %q", name, got, want)
		}
	}
}
