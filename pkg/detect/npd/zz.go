package npd
import (
 _ "k8s.io/node-problem-detector/pkg/custompluginmonitor/types"
 _ "k8s.io/node-problem-detector/pkg/systemlogmonitor/logwatchers/types"
 _ "k8s.io/node-problem-detector/pkg/systemlogmonitor/types"
 _ "k8s.io/node-problem-detector/pkg/systemstatsmonitor/types"
)
