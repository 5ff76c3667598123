package daemonsethang

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
)

func TestMain(m *testing.M) { os.Exit(checktest.Main(m)) }
