package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"starfish/internal/cli"
	"starfish/job"
)

// manifests are all objects that stand in files below deploy/kubernetes.
func manifests(t *testing.T) map[string]object {
	t.Helper()
	all := map[string]object{}
	require.NoError(t, filepath.WalkDir("../kubernetes", func(file string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		base := filepath.Base(file)
		if d.IsDir() || filepath.Ext(file) != ".yaml" || base == "kustomization.yaml" || base == "job.yaml" {
			return nil
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for id, o := range objects(t, string(text)) {
			all[file+": "+id] = o
		}
		return nil
	}))
	require.Greater(t, len(all), 20)
	return all
}

// templates are the pod templates of an object, with the specs around them.
func templates(o object) (specs []object) {
	spec, ok := o["spec"].(map[string]any)
	if !ok {
		return nil
	}
	if _, ok := spec["template"]; ok {
		return []object{spec}
	}
	list, _ := spec["replicatedJobs"].([]any)
	for _, r := range list {
		specs = append(specs, object(r.(map[string]any)).at("template", "spec").(map[string]any))
	}
	return specs
}

// Every pod runs as nobody, with nothing that the restricted Pod Security level
// forbids, without a token of the API, and with probes and bounds.
func TestPodsAreRestricted(t *testing.T) {
	t.Parallel()
	pods := 0
	for id, o := range manifests(t) {
		for _, spec := range templates(o) {
			pods++
			p := object(spec.at("template", "spec").(map[string]any))
			require.Equal(t, false, p["automountServiceAccountToken"], id)
			require.Equal(t, false, p["enableServiceLinks"], "%s: a Service named starfish-… would set variables of flags", id)
			require.Equal(t, true, p.at("securityContext", "runAsNonRoot"), id)
			require.Equal(t, "RuntimeDefault", p.at("securityContext", "seccompProfile", "type"), id)
			containers := p["containers"].([]any)
			require.Len(t, containers, 1, id)
			c := object(containers[0].(map[string]any))
			require.Equal(t, false, c.at("securityContext", "allowPrivilegeEscalation"), id)
			require.Equal(t, true, c.at("securityContext", "readOnlyRootFilesystem"), id)
			require.Equal(t, []any{"ALL"}, c.at("securityContext", "capabilities", "drop"), id)
			require.NotNil(t, c.at("resources", "requests", "cpu"), id)
			require.NotNil(t, c.at("resources", "limits", "memory"), id)
			for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
				require.NotNil(t, c.at(probe, "httpGet", "path"), "%s: %s", id, probe)
			}
			if c["name"] != "etcd" {
				require.Equal(t, "/healthz", c.at("livenessProbe", "httpGet", "path"), "%s: not ready is no reason to restart", id)
				require.Equal(t, "/readyz", c.at("readinessProbe", "httpGet", "path"), id)
			}
		}
	}
	require.Equal(t, 7, pods, "etcd, pserver and trainer as Jobs, as services, and in a JobSet")
}

// A Job tells what is hopeless, what is a disruption and what is a failure by the
// codes that the daemons exit with.
func TestJobsKnowTheExitCodes(t *testing.T) {
	t.Parallel()
	all := manifests(t)
	settings := all["../kubernetes/base/settings.yaml: ConfigMap/settings"]
	told, err := strconv.Atoi(settings.at("data", "STARFISH_SIGNAL_EXIT_CODE").(string))
	require.NoError(t, err)
	jobs := 0
	for id, o := range all {
		for _, spec := range templates(o) {
			if spec["podFailurePolicy"] == nil {
				require.NotContains(t, id, "Job/")
				continue
			}
			jobs++
			require.Equal(t, "Indexed", spec["completionMode"], id)
			require.Equal(t, spec["completions"], spec["parallelism"], id)
			require.Equal(t, "Failed", spec["podReplacementPolicy"], "%s: two of one name, and one of them exits with 2", id)
			require.Equal(t, "Never", spec.at("template", "spec", "restartPolicy"), id)
			codes := map[string][]any{}
			disruptions := false
			for _, r := range spec.at("podFailurePolicy", "rules").([]any) {
				rule := object(r.(map[string]any))
				if list, ok := rule.at("onExitCodes", "values").([]any); ok {
					codes[rule["action"].(string)] = list
					container := spec.at("template", "spec", "containers").([]any)[0].(map[string]any)
					require.Equal(t, container["name"], rule.at("onExitCodes", "containerName"), id)
				} else {
					disruptions = rule["action"] == "Ignore"
				}
			}
			require.True(t, disruptions, id)
			require.Equal(t, []any{int(job.ExitUsage), int(job.ExitStateLost), int(job.ExitData)}, codes["FailJob"], id)
			require.Equal(t, []any{int(job.ExitSuperseded), 137, told}, codes["Ignore"], id)
		}
	}
	require.Equal(t, 4, jobs)
}

// Every variable of the environment is a flag of the daemons.
func TestSettingsAreFlags(t *testing.T) {
	t.Parallel()
	fs := pflag.NewFlagSet("daemon", pflag.ContinueOnError)
	new(cli.Daemon).Register(fs)
	known := append(cli.Variables(fs), cli.Variable("listen"), cli.Variable("advertise"))
	require.NoError(t, filepath.WalkDir("..", func(file string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		if d.IsDir() || !slices.Contains([]string{".yaml", ".tpl"}, filepath.Ext(file)) {
			return nil
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\bSTARFISH_[A-Z_]+\b`).FindAllString(string(text), -1) {
			require.Contains(t, known, name, file)
		}
		return nil
	}))
}

// A pserver that is told to go has the time that it may take, and budgets of Jobs
// are of the kind that does not forbid every eviction.
func TestGraceAndBudgets(t *testing.T) {
	t.Parallel()
	for id, o := range manifests(t) {
		for _, spec := range templates(o) {
			grace, _ := spec.at("template", "spec", "terminationGracePeriodSeconds").(int)
			require.Greater(t, grace, 20, id)
		}
	}
	budget := manifests(t)["../kubernetes/base/pserver.yaml: PodDisruptionBudget/pserver"]
	require.NotNil(t, budget.at("spec", "minAvailable"))
	require.Nil(t, budget.at("spec", "maxUnavailable"), "a Job has no scale to count by")
}

// Every file that a kustomization names is there, every spec saves below the volume,
// and the etcd is the one that the programs are built with.
func TestKustomizations(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../kubernetes/*/*/kustomization.yaml")
	require.NoError(t, err)
	base := "../kubernetes/base/kustomization.yaml"
	require.NotEmpty(t, files)
	module, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	etcd := regexp.MustCompile(`go\.etcd\.io/etcd/server/v3 (v\S+)`).FindSubmatch(module)
	for _, file := range append(files, base) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var k struct {
			Resources, Components []string
			ConfigMapGenerator    []struct{ Files, Literals []string } `yaml:"configMapGenerator"`
			Images                []struct {
				Name   string
				NewTag string `yaml:"newTag"`
			}
		}
		require.NoError(t, yaml.Unmarshal(text, &k))
		for _, r := range append(k.Resources, k.Components...) {
			_, err := os.Stat(filepath.Join(filepath.Dir(file), r))
			require.NoError(t, err, file)
		}
		for _, g := range k.ConfigMapGenerator {
			spec, err := os.ReadFile(filepath.Join(filepath.Dir(file), g.Files[0]))
			require.NoError(t, err)
			_, name, _ := strings.Cut(g.Literals[0], "=")
			require.Contains(t, string(spec), "\njob: "+name+"\n", "one name")
			require.Contains(t, string(spec), "dir: /checkpoints/"+name+",", "on the volume, in a directory of its own")
		}
		for _, i := range k.Images {
			if i.Name == "etcd" {
				require.Equal(t, string(etcd[1]), i.NewTag, file)
			}
		}
	}
	values, err := os.ReadFile("../helm/starfish/values.yaml")
	require.NoError(t, err)
	require.Contains(t, string(values), "gcr.io/etcd-development/etcd:"+string(etcd[1]))
}

// Every policy is about pods that there are, and lets through ports that they have.
func TestPoliciesKnowTheirPods(t *testing.T) {
	t.Parallel()
	all := manifests(t)
	list := func(o object, keys ...string) []any { l, _ := o.at(keys...).([]any); return l }
	ports := map[string]map[string]bool{} // of the pods, by app.kubernetes.io/name
	for id, o := range all {
		for _, spec := range templates(o) {
			name := spec.at("template", "metadata", "labels", "app.kubernetes.io/name").(string)
			known := map[string]bool{}
			for _, c := range list(spec, "template", "spec", "containers") {
				for _, p := range list(c.(map[string]any), "ports") {
					known[p.(map[string]any)["name"].(string)] = true
				}
			}
			if ports[name] != nil {
				require.Equal(t, ports[name], known, id)
			}
			ports[name] = known
		}
	}
	covered := map[string]bool{}
	for id, o := range all {
		if o["kind"] != "NetworkPolicy" {
			continue
		}
		var selected []string
		if name, ok := o.at("spec", "podSelector", "matchLabels", "app.kubernetes.io/name").(string); ok {
			selected = append(selected, name)
		}
		for _, e := range list(o, "spec", "podSelector", "matchExpressions") {
			require.Equal(t, "In", e.(map[string]any)["operator"], id)
			for _, name := range list(e.(map[string]any), "values") {
				selected = append(selected, name.(string))
			}
		}
		require.NotEmpty(t, selected, id)
		for _, name := range selected {
			covered[name] = true
			let := map[string]bool{}
			for _, rule := range list(o, "spec", "ingress") {
				for _, p := range list(rule.(map[string]any), "ports") {
					let[p.(map[string]any)["port"].(string)] = true
				}
			}
			require.Equal(t, ports[name], let, "%s: the ports of %s", id, name)
		}
	}
	require.Equal(t, map[string]bool{"etcd": true, "pserver": true, "trainer": true}, covered)
}
