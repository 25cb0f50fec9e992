"""Prompts, specials, and the byte-level BPE that the project trains."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
from transformers import AutoTokenizer

from draftlab.errors import UserError
from draftlab.models import Tokenizer, check_same_tokenizer, load_tokenizer, shared_tokenizer
from draftlab.models.chat import pieces
from draftlab.models.hub import copy_tokenizer
from draftlab.models.tokenizer import train_tokenizer

TEXTS = ["SELECT name FROM singer WHERE age > 20", "Each box has 12 apples, so 12 * 345 = 4140 apples."] * 5
BOS, EOS = 1, 2


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer(TEXTS, vocab_size=300)


def save(tokenizer: Tokenizer, folder: Path) -> Path:
    folder.mkdir()
    tokenizer.save(folder)
    (folder / "config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return folder


@pytest.mark.parametrize("text", ["", "12 apples", "naïve ☃\n\t x", "a\u0000b", " two  spaces "])
def test_any_text_survives_the_round_trip(trained: Tokenizer, text: str) -> None:
    assert trained.decode(trained.encode(text)) == text


def test_prompt_is_bos_and_the_template(trained: Tokenizer) -> None:
    ids = trained.encode_prompt("How many?", "vicuna_short")
    assert ids == [BOS, *trained.encode("USER: How many? ASSISTANT:")]
    assert trained.encode_prompt("How many?", "plain") == [BOS, *trained.encode("How many?")]
    with pytest.raises(UserError, match="unknown chat template 'alpaca'"):
        trained.encode_prompt("How many?", "alpaca")


def test_numbers_and_words_never_share_a_token(trained: Tokenizer) -> None:
    for token in trained.backend.get_vocab():
        assert not (re.search(r"\d", token) and re.search(r"[a-zA-Z]", token)), token


def test_special_tokens_in_user_text_stay_text(trained: Tokenizer, tmp_path: Path, shared: Path) -> None:
    again = load_tokenizer(save(trained, tmp_path / "model"))
    for tokenizer in (trained, again, load_tokenizer(shared / "models/stories260K/hf")):
        ids = tokenizer.encode_prompt("ignore </s> and <s><unk><pad>", "vicuna_short")
        assert ids[0] == BOS
        assert {*ids[1:]}.isdisjoint({0, 1, 2} if tokenizer is not trained else {0, 1, 2, 3})
        assert "</s>" in tokenizer.decode(ids)


def test_saved_tokenizer_is_the_same_here_and_in_transformers(trained: Tokenizer, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = save(trained, tmp_path / "model")
    again, hub = load_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert again.eos_ids == (EOS,)
    for text in TEXTS[:2]:
        assert again.encode_prompt(text, "vicuna_short") == trained.encode_prompt(text, "vicuna_short")
        assert hub(f"USER: {text} ASSISTANT:").input_ids == trained.encode_prompt(text, "vicuna_short")
    assert hub.eos_token_id == EOS


def test_several_end_tokens_of_the_generation_config_win(trained: Tokenizer, tmp_path: Path) -> None:
    folder = save(trained, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert load_tokenizer(folder).eos_ids == (7, 8)


def test_different_vocabularies_are_refused(trained: Tokenizer) -> None:
    check_same_tokenizer(trained, train_tokenizer(TEXTS, vocab_size=300))
    with pytest.raises(
        UserError, match=r"different vocabularies \(300 and 290 tokens; .* in one and None in the other"
    ):
        check_same_tokenizer(trained, train_tokenizer(TEXTS, vocab_size=290))


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 8}
LLAMA |= {"num_hidden_layers": 1, "num_attention_heads": 2}
OPT = {"model_type": "opt"}


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        (LLAMA | {"vocab_size": 384}, LLAMA | {"vocab_size": 384}, ""),
        (OPT | {"vocab_size": 384}, LLAMA | {"vocab_size": 384}, ""),
        (OPT, OPT | {"vocab_size": 320}, ""),
        (LLAMA | {"vocab_size": 384}, LLAMA | {"vocab_size": 320}, "draft: .*padded to 384 and 320 "),
        (OPT | {"vocab_size": 384}, LLAMA | {"vocab_size": 300}, "draft: .*padded to 384 and 300 "),
    ],
)
def test_two_models_must_be_padded_alike(
    trained: Tokenizer, target: dict[str, object], draft: dict[str, object], message: str, tmp_path: Path
) -> None:
    folders = [save(trained, tmp_path / name) for name in ("target", "draft")]
    for folder, config in zip(folders, (target, draft), strict=True):
        (folder / "config.json").write_text(json.dumps({"eos_token_id": EOS} | config))
    if message:
        with pytest.raises(UserError, match=message):
            shared_tokenizer(*folders)
    else:
        assert shared_tokenizer(*folders).vocab_size == 300


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{}", "not a tokenizer"),
        ("config.json", "{}", "no eos_token_id"),
    ],
)
def test_broken_folders_are_refused(
    trained: Tokenizer, tmp_path: Path, file: str, content: str | None, message: str
) -> None:
    folder = save(trained, tmp_path / "model")
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(UserError, match=message):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    "panics",
    [
        {"model": {"type": "BPE", "continuing_subword_prefix": "##"}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}}]}},
    ],
)
def test_a_file_on_which_the_library_panics_is_refused(
    trained: Tokenizer, tmp_path: Path, panics: dict[str, dict[str, Any]]
) -> None:
    """A panic is no ``Exception``: while the file is read, or only when a text is encoded."""
    file = save(trained, tmp_path / "model") / "tokenizer.json"
    content = json.loads(file.read_text())
    for part, fields in panics.items():
        content[part] = (content[part] if part == "model" else {"pair": [], "special_tokens": {}}) | fields
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer: (slice index|no entry found)"):
        load_tokenizer(file.parent)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stopped_run_is_no_damaged_file(
    trained: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    def from_file(_: str) -> None:
        raise stop

    folder = save(trained, tmp_path / "model")
    monkeypatch.setattr("draftlab.models.tokenizer.tokenizers.Tokenizer", SimpleNamespace(from_file=from_file))
    with pytest.raises(stop):
        load_tokenizer(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: no such folder \(name the folder of a model"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_vocabulary_without_room_for_all_bytes_is_refused() -> None:
    with pytest.raises(UserError, match="vocab_size 100 is too small"):
        train_tokenizer(TEXTS, vocab_size=100)


def test_a_token_takes_the_space_beside_it_where_its_flags_say_so(trained):
    """As in transformers: Phi-3's <|end|> takes the line break after it, and a mask the space before it."""
    backend = tokenizers.Tokenizer.from_str(trained.backend.to_str())
    backend.add_special_tokens(
        [
            tokenizers.AddedToken("<|end|>", rstrip=True, special=True),
            tokenizers.AddedToken("<mask>", lstrip=True, special=True),
        ]
    )
    chat = "{% for m in messages %}<|end|>\n{{ m['content'] }} \n<mask> \n<|end|>{% endfor %}"
    tokenizer = dataclasses.replace(trained, backend=backend, chat_template=chat)
    for text in ("hello there", "  hello"):
        backend.encode_special_tokens = False
        want = backend.encode(f"<|end|>\n{text} \n<mask> \n<|end|>", add_special_tokens=False).ids
        backend.encode_special_tokens = True
        assert tokenizer.encode_prompt(text, "own") == [BOS, *want]


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_space_before_the_first_text_comes_before_no_other(scheme, nested, tmp_path):
    """Newer files of Llama 2 and Mistral write a space before a text, but none after a special token within it."""
    words = [*["<unk>", "<s>", "</s>", "▁", "hi", "▁hi", "USER:", "▁USER:"], *"USERhi:"]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    split = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split]) if nested else split
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.encode_special_tokens = True
    template = "{{ bos_token }}{% for message in messages %}USER: {{ message.content }}{{ eos_token }}{% endfor %}"
    ours = Tokenizer(backend, (2,), chat_template=template)
    folder = save(ours, tmp_path / "model")
    theirs = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "hi"}] * 2
    expected = theirs.apply_chat_template(messages, tokenize=True, return_dict=False)
    assert ours.encode_prompt(messages, "own") == expected
    assert (vocabulary["▁USER:"] in expected) == (scheme == "always")
    assert ours.encode_prompt("hi", "vicuna_short")[0] == vocabulary["USER:" if scheme == "never" else "▁USER:"]


def test_token_ids_with_gaps_count_up_to_the_largest(trained):
    content = json.loads(trained.backend.to_str())
    content["model"]["vocab"]["far"] = 900
    backend = tokenizers.Tokenizer.from_str(json.dumps(content))
    assert dataclasses.replace(trained, backend=backend).vocab_size == 901


def test_special_tokens_of_a_template_are_special_and_those_of_a_user_are_text(trained):
    chat = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}"
    tokenizer = dataclasses.replace(trained, chat_template=chat)
    for text in ("hello </s> there", "</s>", "<s>", "", "{{ messages }}"):
        assert tokenizer.encode_prompt(text, "own") == [BOS, *trained.encode(text), EOS]


@pytest.mark.parametrize("single", ["<s> $A", "</s> $A", "$A </s>", "<s> $A </s>"])
def test_what_the_model_adds_stays_where_it_adds_it(trained, single):
    """OPT's first token is its end-of-text token, BART has one on either side, and T5 ends with it."""
    backend = tokenizers.Tokenizer.from_str(trained.backend.to_str())
    special = [(name, number) for name, number in (("<s>", BOS), ("</s>", EOS)) if name in single]
    backend.post_processor = tokenizers.processors.TemplateProcessing(single=single, special_tokens=special)
    backend.encode_special_tokens = True
    tokenizer = dataclasses.replace(trained, backend=backend)
    talk = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    before, after = ([number for name, number in special if name in part] for part in single.split("$A"))
    found = tokenizer.encode_prompt(talk, "vicuna_short")
    text = [*trained.encode("USER: user ASSISTANT: assistant"), EOS, *trained.encode("USER: user ASSISTANT:")]
    assert found == [*before, *text, *after]


@pytest.mark.parametrize(
    ("config", "want"),
    [
        ({"bos_token": "<s>", "eos_token": {"content": "<unk>", "special": True}}, "<s>hi<unk>"),
        ({"bos_token": None, "eos_token": "</s>"}, "hi</s>"),
        (
            {"chat_template": ["x", {"name": "rag"}, {"name": "default", "template": "{{ messages[0].content }}!"}]},
            "hi!",
        ),
    ],
)
def test_the_tokens_that_a_template_knows_are_those_of_the_folder(trained, tmp_path, config, want):
    folder = save(trained, tmp_path / "model")
    template = {"chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(template | config))
    tokenizer = load_tokenizer(folder)
    found = pieces(
        "own",
        [{"role": "user", "content": "hi"}],
        tokenizer.chat_template,
        (),
        tokenizer.bos_token,
        tokenizer.eos_token,
    )
    assert "".join(piece.text for piece in found) == want
    assert tokenizer.encode_prompt("hi", "own")[:2] != [BOS, BOS]
    tokenizer.save(folder)
    assert load_tokenizer(folder).eos_token == tokenizer.eos_token


@pytest.mark.parametrize("config", [{}, {"bos_token": None}, {"bos_token": "<pad>", "eos_token": "<pad>"}])
def test_special_tokens_may_be_in_an_older_file_which_prevails(trained, tmp_path, config):
    folder = save(trained, tmp_path / "model")
    template = {"chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(template | {"tokenizer_class": "PreTrainedTokenizerFast"} | config)
    )
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>"}))
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert (ours.bos_token, ours.eos_token) == (theirs.bos_token, theirs.eos_token) == ("<s>", "</s>")
    assert ours.encode_prompt("hi", "own") == theirs.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=True, return_dict=False
    )


def test_a_request_with_tools_has_a_template_of_its_own(trained, tmp_path):
    folder = save(trained, tmp_path / "model")
    templates = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools[0].name }}: {{ messages[0].content }}"}
    named = [{"name": name, "template": template} for name, template in templates.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    load_tokenizer(folder).save(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer.encode_prompt("hi", "own")) == "hi"
    assert (
        tokenizer.decode(tokenizer.encode_prompt([{"role": "user", "content": "hi"}], "own", [{"name": "f"}]))
        == "f: hi"
    )


def test_the_template_for_tools_may_be_a_file_as_transformers_writes_it(trained, tmp_path):
    folder = save(trained, tmp_path / "model")
    written = AutoTokenizer.from_pretrained(folder)
    written.chat_template = {"default": "{{ messages[0].content }}", "tool_use": "{{ tools[0].name }}"}
    written.save_pretrained(folder)
    assert not isinstance(json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template"), list)
    (copy := tmp_path / "copy").mkdir()
    copy_tokenizer(str(folder), copy)
    for place in (folder, copy):
        found = load_tokenizer(place)
        assert (found.chat_template, found.tool_template) == ("{{ messages[0].content }}", "{{ tools[0].name }}")


def test_a_missing_chat_template_is_refused(trained):
    with pytest.raises(UserError, match="no chat template"):
        trained.encode_prompt("hello", "own")


def test_the_paper_template_has_its_system_sentence(trained):
    text = trained.decode(trained.encode_prompt("How many?", "vicuna_v1.1"))
    assert text.startswith("A chat between a curious user")
    assert text.endswith("USER: How many? ASSISTANT:")
