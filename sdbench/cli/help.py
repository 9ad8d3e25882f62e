"""The text of --help. Fast: neither Hydra nor torch is imported."""

from pathlib import Path

from sdbench.config import GROUPS, config_dir

TEXT = """\
sdbench: what lenient speculative decoding costs in quality and gains in speed, for one pair of models and one task.

  python -m sdbench [KEY=VALUE ...] [-m] [--config-dir DIR]

  python -m sdbench                                        the tiny pair that ships with the package, 13 values of w
  python -m sdbench model=llama task=cnndm w=0.7
  python -m sdbench model=qwen task=gsm8k 'w=[0.3,0.5,0.7,0.9,1.0]' 'num_draft=[3,5,8]' n=500 decode=sampling samples=4
  python -m sdbench -m model=llama-tiny,qwen-tiny task=xsum-tiny,wmt-tiny 'w=[0.5,0.7,1.0]'
  python -m sdbench model.target=org/big model.draft=org/small task=mbpp w=0.8
  python -m sdbench experiment=diversed-table1

Also, each with its own --help (python -m sdbench report and so on are the same)
  python -m sdbench.report FOLDER ...   rebuild page, figures and tables; decide at another margin
  python -m sdbench.score task=NAME predictions=FILE   score completions of any engine
  python -m sdbench.audit [KEY=VALUE ...]   test whether a rule, a drafter or an engine emits the distribution it claims
  python -m sdbench.train TRAINING [KEY=VALUE ...]   train a head, a judge or a draft
  python -m sdbench.runs [FOLDER ...]   runs of a folder: texts held, missing and failed, jobs at work

What is run
  model=NAME        the pair: a large target and a small draft; model.target=ID and model.draft=ID name any two
                    (hub ids or folders; model.attention, model.device_map, model.quantization and others: see its file)
  task=NAME         the data, its prompts and scores; task.protocol=, task.data=FILE and others as in its file; task=lm-eval:NAME:
                    a task of lm-evaluation-harness
  verifier=NAME     the rule that judges drafted tokens; its knobs are set as verifier.KNOB=VALUE. Several rules in one run:
                    verifier=[A,B], knobs as verifier.A.KNOB=VALUE; verifier=all: all that can run at this temperature and
                    need no head; a class of yours: verifier._target_=module.Class
  drafter=NAME      what proposes tokens. Several in one run: drafter=[A,B], options as drafter.A.OPTION=VALUE; drafter=all:
                    all that can run with this pair
  w=X or w=[X,Y]    the weight of the TARGET in the ensemble w p + (1 - w) q: w=1 is lossless speculative decoding, w=0
                    keeps every drafted token (default for verifier=ensemble: 13 values from 0 to 1; other rules take no w)
  num_draft=K       tokens drafted per round, a number or a list                                    (5)
  decode=NAME       a preset of temperature, top_k and top_p
  temperature=T     0 is greedy                                                                     (0)
  top_k=K top_p=P   applied to both models' distributions                                           (none)
  max_new_tokens=N  length of an answer                                                             (set by the task)
  n=N               examples; n=all takes every row                                                 (set by the task)
  samples=S         answers per example and cell                                                    (1)
  seed=S            of the random numbers; seed=[0,1,2] runs three seeds into one folder (task.seed= chooses the examples)  (0)
  margin=M          the loss of quality you would accept, in points of 100, for the recommendation  (5)
                    or one for each task, also in an experiment: 'margin={gsm8k: 1, cnndm: 0.5, default: 2}'
  experiment=NAME   a whole study: the tables of DIVERSED (arXiv:2604.07622) and others
  method=NAME       a row of those tables: static ensembles, the learned head, the finetuned draft (docs/learned.md)

How it is run
  engine=NAME       what decodes: native, or a server: http, vllm, llamacpp (docs/engines.md)         (native)
  batch_size=B      rows decoded together; auto finds what fits                                     (auto)
  device=D          auto, cpu, cuda, cuda:1, xpu, hpu                                               (auto)
  dtype=T           auto, float64, float32, bfloat16, float16                                       (auto)
  timing=off        leaves out the latency pass, which times lossless, the target alone and 3 settings of each curve (rule, drafter
                    and draft length) on 8 examples; for numbers to publish: timing.examples=30 timing.cells=11
                    (timing.repeats, timing.batch_size);
                    timing.assisted=true times transformers' assisted generation too; a server can be timed at arrival rates:
                    'timing.rate=[0.5,1,2]' 'timing.slo={ttft: 0.5, tpot: 0.05}' (docs/engines.md, Open-loop load)
  shard=I/K         part I of K of the examples, I from 0 to K-1, for several machines on one folder; part 0 also runs the latency
                    pass                                                                            (0/1)
  -m                one job per combination of comma lists; hydra/launcher=basic, submitit_local or slurm starts them
  --config-dir DIR  more files for the groups below, in DIR/model/NAME.yaml and so on
  --cfg             prints the resolved configuration, with all options of the chosen files, and runs nothing
  --plan            prints what the records hold and what is missing, downloads, memory and hours, and runs nothing
  --prefetch        downloads the models and the data and stops: for nodes without a network
  --list GROUP      the files of model, task, verifier, drafter, method, experiment, decode, engine or tracker, with a line on each
  --version         prints the version

Where it goes
  results=DIR       the root folder of all results                                                  (results)
  name=NAME         the folder below it                                                             (MODEL-TASK)
  report=off        leaves out the page and the figures, which are otherwise drawn if records have changed  (on)
  tracker=NAME      sends summary and figures to tensorboard, mlflow or wandb as well               (none)
  force=true        decodes again what is recorded; without it only what is missing is computed, so raising n or
                    samples, or adding a w, extends the same folder, and an interrupted run continues where it was. Finished
                    generations are stored, unfinished ones are not: a stop costs the texts that were being written

Lists go in brackets and quotes: 'w=[0.5,0.7]'.
Exit codes: 0 done, 1 some cells failed or something unexpected happened, 2 bad configuration, 130 interrupted.

Groups (files in configs/)
"""


def listing(group: str, folder: str | None) -> str:
    """Return the files of a group, including the user's, each with the first line of its comment."""
    roots = [config_dir(), *([Path(folder)] if folder else [])]
    files = {path.stem: path for root in roots for path in sorted((root / group).glob("*.yaml"))}
    width = max(map(len, files), default=0)
    return "\n".join(f"{name:<{width}}  {_first_comment(path)}" for name, path in sorted(files.items()))


def _first_comment(path: Path) -> str:
    lines = (line.strip("# ").strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    return next((line for line in lines if line and not line.startswith("@")), "")


def text() -> str:
    """Return the help text: the options, then the files of every group."""
    root = config_dir()
    names = {group: sorted(path.stem for path in (root / group).glob("*.yaml")) for group in GROUPS}
    return TEXT + "\n".join(f"  {group + '=':<16}{' '.join(files)}" for group, files in names.items())
